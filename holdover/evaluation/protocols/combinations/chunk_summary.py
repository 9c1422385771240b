"""What composed contexts amount to: a row for every kind of chunk states and way to compose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdover.evaluation.protocols.combinations.chunks import Contexts, State
from holdover.evaluation.protocols.estimate import mean_if, mean_of, vector
from holdover.evaluation.retention.points import percentile


@dataclass(frozen=True)
class ChunkRow:
    """Contexts composed in one way of one kind of chunk states. Contexts are the unit of the intervals.

    Attributes:
        state: how chunk states were kept.
        w_max: retention cutoff; None where there is none.
        initialiser: which state a context begins with.
        selector: which tokens of chunks were run again.
        ratio: mean share of them.
        mean: mean KL(full prefill || composed) in nats.
        low: lower end of its interval.
        high: upper end.
        p95: 95th percentile over all tokens.
        agreement: share of tokens after which the most probable token is the same.
        agreement_low: lower end of its interval.
        agreement_high: upper end.
        difference: mean KL less that of chunk states kept as they are, paired by context; None for those themselves.
        difference_low: lower end of its interval.
        difference_high: upper end.
        state_bytes: bytes of one chunk's state.
        packed: chunk states that were packed records.
        count: contexts.
    """

    state: str
    w_max: int | None
    initialiser: str
    selector: str
    ratio: float
    mean: float
    low: float
    high: float
    p95: float
    agreement: float
    agreement_low: float
    agreement_high: float
    difference: float | None
    difference_low: float | None
    difference_high: float | None
    state_bytes: int
    packed: int
    count: int


def chunk_rows(results: Mapping[State, Sequence[Contexts]]) -> list[ChunkRow]:
    """A row for every kind of chunk states and way to compose; the first kind is the reference."""
    kinds = list(results)
    return [
        _row(state, results[state], way, None if state is kinds[0] else results[kinds[0]])
        for state in kinds
        for way in range(len(results[state][0].composed))
    ]


def _row(state: State, contexts: Sequence[Contexts], way: int, reference: Sequence[Contexts] | None) -> ChunkRow:
    own, kl = [context.composed[way] for context in contexts], _kl(contexts, way)
    mean, low, high = mean_of(kl)
    agreement, agreement_low, agreement_high = mean_of(vector([one.same / len(one.kl) for one in own]))
    difference, difference_low, difference_high = mean_if(None if reference is None else kl - _kl(reference, way))
    return ChunkRow(
        state=state.kept,
        w_max=state.plan.w_max if state.plan is not None else None,
        initialiser=own[0].initialiser,
        selector=own[0].selector,
        ratio=sum(one.ratio for one in own) / len(own),
        mean=mean,
        low=low,
        high=high,
        p95=percentile(vector([value for one in own for value in one.kl]), 0.95),
        agreement=agreement,
        agreement_low=agreement_low,
        agreement_high=agreement_high,
        difference=difference,
        difference_low=difference_low,
        difference_high=difference_high,
        state_bytes=contexts[0].state_bytes,
        packed=sum(context.packed for context in contexts),
        count=len(contexts),
    )


def _kl(contexts: Sequence[Contexts], way: int) -> Tensor:
    """Mean KL of every context composed in one way, float64 ``[contexts]``."""
    return torch.stack([vector(context.composed[way].kl).mean() for context in contexts])
