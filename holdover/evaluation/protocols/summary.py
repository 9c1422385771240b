"""What the arms of a run amount to: means over instances, and differences to the first arm, paired by instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import torch

from holdover.evaluation.protocols.arms import Arm
from holdover.evaluation.protocols.problem import Problem
from holdover.evaluation.protocols.warm_replay import Replay, loaded_share, pooled_hit
from holdover.evaluation.retention.statistics import bootstrap_mean


@dataclass(frozen=True)
class Row:
    """One arm on one task. Replays are averaged within each instance before anything else.

    Attributes:
        task: the task.
        metric: what is scored.
        arm: the arm's kind, with its seed if it is one of the controls.
        w_max: its cutoff; None where it has none.
        mean: mean over instances.
        low: lower end of its 95 % bootstrap interval over instances.
        high: upper end.
        difference: mean difference to the reference, paired by instance; None for the reference itself.
        difference_low: lower end of its interval, the pairs resampled together.
        difference_high: upper end.
        hit: token hit, pooled.
        loaded: share of requests that resumed.
        count: instances.
        replays: replays of each.
    """

    task: str
    metric: str
    arm: str
    w_max: int | None
    mean: float
    low: float
    high: float
    difference: float | None
    difference_low: float | None
    difference_high: float | None
    hit: float
    loaded: float
    count: int
    replays: int


@dataclass(frozen=True)
class Control:
    """The count-matched control at one cutoff: mean and sample standard deviation over its masks.

    Attributes:
        task: the task.
        w_max: the cutoff.
        mean: mean of the masks' means.
        deviation: their sample standard deviation.
        masks: how many.
    """

    task: str
    w_max: int
    mean: float
    deviation: float
    masks: int


def summarise(problems: Sequence[Problem], results: Mapping[Arm, Sequence[Replay]]) -> list[Row]:
    """A row for every task and arm; the first arm is the reference of the differences."""
    return [
        row
        for task in dict.fromkeys(problem.task for problem in problems)
        for row in _task([problem for problem in problems if problem.task == task], results)
    ]


def controls(arms: Sequence[Arm], rows: Sequence[Row]) -> list[Control]:
    """The five masks of each cutoff taken together."""
    names = {_label(arm) for arm in arms if arm.seed is not None}
    groups: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row.arm in names and row.w_max is not None:
            groups.setdefault((row.task, row.w_max), []).append(row.mean)
    return [
        Control(task, w_max, mean(means), stdev(means) if len(means) > 1 else 0.0, len(means))
        for (task, w_max), means in groups.items()
    ]


def _task(problems: Sequence[Problem], results: Mapping[Arm, Sequence[Replay]]) -> list[Row]:
    ids = {problem.id for problem in problems}
    mine = {arm: [one for one in replays if one.problem in ids] for arm, replays in results.items()}
    values = {arm: _by_instance(problems, replays) for arm, replays in mine.items()}
    reference = next(iter(values.values()))
    rows = []
    for number, (arm, scores) in enumerate(values.items()):
        low, high = bootstrap_mean(scores)
        paired = scores - reference
        between = bootstrap_mean(paired) if number else (None, None)
        rows.append(
            Row(
                task=problems[0].task,
                metric=problems[0].metric,
                arm=_label(arm),
                w_max=arm.plan.w_max if arm.plan is not None else None,
                mean=float(scores.mean()),
                low=low,
                high=high,
                difference=float(paired.mean()) if number else None,
                difference_low=between[0],
                difference_high=between[1],
                hit=pooled_hit(mine[arm]),
                loaded=loaded_share(mine[arm]),
                count=len(problems),
                replays=len(mine[arm]) // len(problems),
            )
        )
    return rows


def _by_instance(problems: Sequence[Problem], replays: Sequence[Replay]) -> torch.Tensor:
    scores: dict[str, list[float]] = {problem.id: [] for problem in problems}
    for one in replays:
        scores[one.problem].append(one.score)
    return torch.tensor([mean(found) for found in scores.values()], dtype=torch.float64)


def _label(arm: Arm) -> str:
    return arm.kind if arm.seed is None else f"{arm.kind}({arm.seed})"
