"""What the rollouts of an arm amount to: by where in the continuation a token stands, and in all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from holdover.evaluation.protocols.deferred.arms import Arm
from holdover.evaluation.protocols.deferred.rollout import Block, Rollout
from holdover.evaluation.protocols.estimate import mean_of, vector
from holdover.evaluation.retention.points import percentile

_SHORTEST_BUCKET = 16


@dataclass(frozen=True)
class Row:
    """One arm at some positions of the continuations. Prefixes are the unit of the 95 % bootstrap intervals.

    Attributes:
        arm: name of the arm.
        merge_interval: M; None for the prefill.
        log: dtypes of the log's keys and values.
        first: first token of the bucket.
        last: token behind it.
        mean: mean KL(dense || arm) in nats.
        low: lower end of its interval.
        high: upper end.
        p50: median over all tokens.
        p95: 95th percentile.
        p99: 99th percentile.
        largest: largest.
        agreement: share of tokens after which the most probable token is the same.
        agreement_low: lower end of its interval.
        agreement_high: upper end.
        count: prefixes.
    """

    arm: str
    merge_interval: int | None
    log: str
    first: int
    last: int
    mean: float
    low: float
    high: float
    p50: float
    p95: float
    p99: float
    largest: float
    agreement: float
    agreement_low: float
    agreement_high: float
    count: int


@dataclass(frozen=True)
class Overall:
    """One arm over whole continuations.

    Attributes:
        arm: name of the arm.
        merge_interval: M; None for the prefill.
        log: dtypes of the log's keys and values.
        growth: mean KL of the last bucket less that of the first, paired by prefix, in nats.
        growth_low: lower end of its interval.
        growth_high: upper end.
        same: mean tokens before the first disagreement, those of a whole continuation if there is none.
        same_low: lower end of its interval.
        same_high: upper end.
        never: share of prefixes without a disagreement.
        largest_gap: most that dense decode preferred its own token to the arm's, in nats; 0 without a disagreement.
        state_error: relative error of the state at the end in the worst layer, its mean.
        state_error_low: lower end of its interval.
        state_error_high: upper end.
        largest_state_error: its largest.
        appended: tokens that went to a log.
        folded: tokens with which a log was folded.
        slot_bytes: bytes of one sequence's state with its log.
        count: prefixes.
    """

    arm: str
    merge_interval: int | None
    log: str
    growth: float
    growth_low: float
    growth_high: float
    same: float
    same_low: float
    same_high: float
    never: float
    largest_gap: float
    state_error: float
    state_error_low: float
    state_error_high: float
    largest_state_error: float
    appended: int
    folded: int
    slot_bytes: int
    count: int


def buckets(tokens: int) -> list[tuple[int, int]]:
    """Positions that are taken together: each bucket as long as all before it."""
    edges = [tokens]
    while edges[0] >= 2 * _SHORTEST_BUCKET:
        edges.insert(0, edges[0] // 2)
    return list(zip([0, *edges[:-1]], edges, strict=True))


def rows(results: Mapping[Arm, Sequence[Block]]) -> list[Row]:
    """A row for every arm and bucket, the last of each for all tokens."""
    found = []
    for arm, blocks in results.items():
        rollouts = _rollouts(blocks)
        tokens = len(rollouts[0].kl)
        parts = buckets(tokens)
        found += [_row(arm, rollouts, *part) for part in (*parts, *([(0, tokens)] if len(parts) > 1 else []))]
    return found


def overall(results: Mapping[Arm, Sequence[Block]]) -> list[Overall]:
    """What every arm amounts to in all."""
    return [_overall(arm, blocks) for arm, blocks in results.items()]


def _row(arm: Arm, rollouts: Sequence[Rollout], first: int, last: int) -> Row:
    kl = _kl(rollouts)[:, first:last]
    differing = [sum(first <= at < last for at in one.disagreements) for one in rollouts]
    mean, low, high = mean_of(kl.mean(1))
    agreement, agreement_low, agreement_high = mean_of(1 - vector(differing) / (last - first))
    p50, p95, p99 = (percentile(kl.flatten(), share) for share in (0.5, 0.95, 0.99))
    return Row(
        arm=arm.name,
        merge_interval=arm.merge_interval,
        log=arm.log,
        first=first,
        last=last,
        mean=mean,
        low=low,
        high=high,
        p50=p50,
        p95=p95,
        p99=p99,
        largest=float(kl.max()),
        agreement=agreement,
        agreement_low=agreement_low,
        agreement_high=agreement_high,
        count=len(rollouts),
    )


def _overall(arm: Arm, blocks: Sequence[Block]) -> Overall:
    rollouts = _rollouts(blocks)
    kl = _kl(rollouts)
    parts = buckets(kl.shape[1])
    start, end = (kl[:, first:last].mean(1) for first, last in (parts[0], parts[-1]))
    same = [float(one.disagreements[0] if one.disagreements else kl.shape[1]) for one in rollouts]
    errors = [one.state_error for one in rollouts]
    growth, growth_low, growth_high = mean_of(end - start)
    same_mean, same_low, same_high = mean_of(vector(same))
    error, error_low, error_high = mean_of(vector(errors))
    return Overall(
        arm=arm.name,
        merge_interval=arm.merge_interval,
        log=arm.log,
        growth=growth,
        growth_low=growth_low,
        growth_high=growth_high,
        same=same_mean,
        same_low=same_low,
        same_high=same_high,
        never=sum(not one.disagreements for one in rollouts) / len(rollouts),
        largest_gap=max((gap for one in rollouts for gap in one.gaps), default=0.0),
        state_error=error,
        state_error_low=error_low,
        state_error_high=error_high,
        largest_state_error=max(errors),
        appended=sum(block.appended for block in blocks),
        folded=sum(block.folded for block in blocks),
        slot_bytes=blocks[0].slot_bytes,
        count=len(rollouts),
    )


def _rollouts(blocks: Sequence[Block]) -> list[Rollout]:
    return [one for block in blocks for one in block.rollouts]


def _kl(rollouts: Sequence[Rollout]) -> torch.Tensor:
    """KL after every token, float64 ``[prefixes, tokens]``."""
    return torch.tensor([one.kl for one in rollouts], dtype=torch.float64)
