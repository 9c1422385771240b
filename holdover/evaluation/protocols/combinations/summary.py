"""What conversations amount to: a row for every combination, one for every number of restores, and how that grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdover.evaluation.protocols.combinations.arms import Combination
from holdover.evaluation.protocols.combinations.run import NOTHING, Talk, Work, add
from holdover.evaluation.protocols.estimate import mean_if, mean_of, vector
from holdover.evaluation.retention.points import percentile

Talks = Mapping[Combination, Sequence[Talk]]


@dataclass(frozen=True)
class Row:
    """One combination over all turns that resumed. Conversations are the unit of the 95 % bootstrap intervals.

    Attributes:
        arm: name of the combination.
        checkpoint: how checkpoints were kept.
        w_max: retention cutoff; None where there is none.
        decode: ``dense`` or ``deferred``.
        merge_interval: M of the log; None without one.
        speculate: ``off`` or ``ngram``.
        once: whether every turn was restored from an exact past.
        mean: mean KL(exact || arm) in nats.
        low: lower end of its interval.
        high: upper end.
        p95: 95th percentile over all tokens.
        agreement: share of tokens before which the most probable token is the same.
        agreement_low: lower end of its interval.
        agreement_high: upper end.
        difference: mean KL less that of the same checkpoints under dense decode without drafts, paired by conversation;
            None for those themselves and for controls.
        difference_low: lower end of its interval.
        difference_high: upper end.
        fresh: mean KL of the first turn, which nothing was restored for.
        checkpoint_bytes: bytes of one checkpoint.
        slot_bytes: bytes of a running sequence's state, its log included.
        work: what the engine did.
        count: conversations.
    """

    arm: str
    checkpoint: str
    w_max: int | None
    decode: str
    merge_interval: int | None
    speculate: str
    once: bool
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
    fresh: float
    checkpoint_bytes: int
    slot_bytes: int
    work: Work
    count: int


@dataclass(frozen=True)
class AtTurn:
    """One combination at one turn.

    Attributes:
        arm: name of the combination.
        restores: restores in the conversation so far.
        losses: lossy restores in the past of the state (k of its lineage).
        resumed: mean tokens that were resumed.
        mean: mean KL(exact || arm) in nats.
        low: lower end of its interval.
        high: upper end.
        excess: mean KL less that of one restore at the same depth, paired by conversation; None without that control.
        excess_low: lower end of its interval.
        excess_high: upper end.
        count: conversations.
    """

    arm: str
    restores: int
    losses: int
    resumed: float
    mean: float
    low: float
    high: float
    excess: float | None
    excess_low: float | None
    excess_high: float | None
    count: int


@dataclass(frozen=True)
class Growth:
    """Whether a combination's error grows from turn to turn: slopes of least squares, one a conversation.

    Attributes:
        arm: name of the combination.
        slope: mean slope of the KL over restores, in nats a restore.
        low: lower end of its interval.
        high: upper end.
        excess: mean slope of what exceeds one restore at the same depth; None without that control.
        excess_low: lower end of its interval.
        excess_high: upper end.
        restores: restores of a conversation.
        count: conversations.
    """

    arm: str
    slope: float
    low: float
    high: float
    excess: float | None
    excess_low: float | None
    excess_high: float | None
    restores: int
    count: int


def rows(results: Talks) -> list[Row]:
    """A row for every combination."""
    return [_row(arm, talks, results) for arm, talks in results.items()]


def at_turns(results: Talks) -> list[AtTurn]:
    """A row for every combination and number of restores; the controls are in the others' excess."""
    return [row for arm, talks in results.items() if not arm.once for row in _turns(arm, talks, results)]


def growths(results: Talks) -> list[Growth]:
    """How the error of every combination grows, where there are two restores or more."""
    # the first turn restores nothing
    chains = {arm: talks for arm, talks in results.items() if not arm.once and len(talks[0].replies) > 2}
    return [_growth(arm, talks, results) for arm, talks in chains.items()]


def _row(arm: Combination, talks: Sequence[Talk], results: Talks) -> Row:
    kl = _by_conversation(talks)
    replies = [[reply for reply in talk.replies if reply.resumed] for talk in talks]
    same = [sum(one.same for one in own) / sum(len(one.kl) for one in own) for own in replies]
    reference = replace(arm, decode="dense", speculate="off")
    paired = kl - _by_conversation(results[reference]) if reference != arm and reference in results else None
    mean, low, high = mean_of(kl)
    agreement, agreement_low, agreement_high = mean_of(vector(same))
    difference, difference_low, difference_high = mean_if(paired)
    work = NOTHING
    for talk in talks:
        work = add(work, talk.work)
    return Row(
        arm=arm.name,
        checkpoint=arm.checkpoint.kind,
        w_max=arm.checkpoint.plan.w_max if arm.checkpoint.plan is not None else None,
        decode=arm.decode,
        merge_interval=talks[0].merge_interval,
        speculate=arm.speculate,
        once=arm.once,
        mean=mean,
        low=low,
        high=high,
        p95=percentile(vector([value for own in replies for one in own for value in one.kl]), 0.95),
        agreement=agreement,
        agreement_low=agreement_low,
        agreement_high=agreement_high,
        difference=difference,
        difference_low=difference_low,
        difference_high=difference_high,
        fresh=float(torch.stack([vector(talk.replies[0].kl).mean() for talk in talks]).mean()),
        checkpoint_bytes=talks[0].checkpoint_bytes,
        slot_bytes=talks[0].slot_bytes,
        work=work,
        count=len(talks),
    )


def _turns(arm: Combination, talks: Sequence[Talk], results: Talks) -> list[AtTurn]:
    kl, excess = _by_turn(talks), _excess(arm, talks, results)
    found = []
    for i in range(kl.shape[1]):
        mean, low, high = mean_of(kl[:, i])
        more, more_low, more_high = mean_if(None if excess is None else excess[:, i])
        found.append(
            AtTurn(
                arm=arm.name,
                restores=1 + i,
                losses=talks[0].replies[1 + i].losses,
                resumed=sum(talk.replies[1 + i].resumed for talk in talks) / len(talks),
                mean=mean,
                low=low,
                high=high,
                excess=more,
                excess_low=more_low,
                excess_high=more_high,
                count=len(talks),
            )
        )
    return found


def _growth(arm: Combination, talks: Sequence[Talk], results: Talks) -> Growth:
    kl, excess = _by_turn(talks), _excess(arm, talks, results)
    slope, low, high = mean_of(_slopes(kl))
    more, more_low, more_high = mean_if(None if excess is None else _slopes(excess))
    return Growth(
        arm=arm.name,
        slope=slope,
        low=low,
        high=high,
        excess=more,
        excess_low=more_low,
        excess_high=more_high,
        restores=kl.shape[1],
        count=len(talks),
    )


def _excess(arm: Combination, talks: Sequence[Talk], results: Talks) -> Tensor | None:
    """KL beyond one restore at the same depth, float64 ``[conversations, restores]``."""
    control = results.get(replace(arm, once=True))
    return None if control is None else _by_turn(talks) - _by_turn(control)


def _by_turn(talks: Sequence[Talk]) -> Tensor:
    """Mean KL of every reply that resumed, float64 ``[conversations, restores]``."""
    return torch.stack([torch.stack([vector(one.kl).mean() for one in talk.replies[1:]]) for talk in talks])


def _by_conversation(talks: Sequence[Talk]) -> Tensor:
    """Mean KL of all replies that resumed, float64 ``[conversations]``; they are equally long."""
    return _by_turn(talks).mean(1)


def _slopes(values: Tensor) -> Tensor:
    """Least-squares slope of each row of ``[n, restores]`` over the number of restores, two or more, ``[n]``."""
    places = torch.arange(values.shape[1], dtype=torch.float64)
    places -= places.mean()
    return values @ places / places.square().sum()
