"""What the arms of a run amount to: means over instances, and differences to the first arm, paired by instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from torch import Tensor

from holdover.evaluation.protocols.arms import Arm
from holdover.evaluation.protocols.estimate import mean_if, mean_of, vector
from holdover.evaluation.protocols.problem import Problem
from holdover.evaluation.protocols.warm_replay import Replay, loaded_share, pooled_hit


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
        metric: what is scored.
        w_max: the cutoff.
        mean: mean of the masks' means.
        deviation: their sample standard deviation.
        masks: how many.
    """

    task: str
    metric: str
    w_max: int
    mean: float
    deviation: float
    masks: int


def summarise(problems: Sequence[Problem], results: Mapping[Arm, Sequence[Replay]]) -> list[Row]:
    """A row for every task, metric and arm; the first arm is the reference of the differences."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        groups.setdefault((problem.task, problem.metric), []).append(problem)
    return [row for group in groups.values() for row in _task(group, results)]


def controls(arms: Sequence[Arm], rows: Sequence[Row]) -> list[Control]:
    """The five masks of each cutoff taken together, task by task and metric by metric."""
    names = {_label(arm) for arm in arms if arm.seed is not None}
    groups: dict[tuple[str, str, int], list[float]] = {}
    for row in rows:
        if row.arm in names and row.w_max is not None:
            groups.setdefault((row.task, row.metric, row.w_max), []).append(row.mean)
    return [
        Control(*group, mean(means), stdev(means) if len(means) > 1 else 0.0, len(means))
        for group, means in groups.items()
    ]


def _task(problems: Sequence[Problem], results: Mapping[Arm, Sequence[Replay]]) -> list[Row]:
    ids = {problem.id for problem in problems}
    mine = {arm: [one for one in replays if one.problem in ids] for arm, replays in results.items()}
    values = {arm: _by_instance(problems, replays) for arm, replays in mine.items()}
    reference = next(iter(values.values()))
    rows = []
    for number, (arm, scores) in enumerate(values.items()):
        average, low, high = mean_of(scores)
        difference, difference_low, difference_high = mean_if(scores - reference if number else None)
        rows.append(
            Row(
                task=problems[0].task,
                metric=problems[0].metric,
                arm=_label(arm),
                w_max=arm.plan.w_max if arm.plan is not None else None,
                mean=average,
                low=low,
                high=high,
                difference=difference,
                difference_low=difference_low,
                difference_high=difference_high,
                hit=pooled_hit(mine[arm]),
                loaded=loaded_share(mine[arm]),
                count=len(problems),
                replays=len(mine[arm]) // len(problems),
            )
        )
    return rows


def _by_instance(problems: Sequence[Problem], replays: Sequence[Replay]) -> Tensor:
    scores: dict[str, list[float]] = {problem.id: [] for problem in problems}
    for one in replays:
        scores[one.problem].append(one.score)
    return vector([mean(found) for found in scores.values()])


def _label(arm: Arm) -> str:
    return arm.kind if arm.seed is None else f"{arm.kind}({arm.seed})"
