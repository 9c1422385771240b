"""What the arms amount to: means over problems with intervals, and differences to the last chunk's state on the same
positions, paired by problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from torch import Tensor

from holdover.evaluation.protocols.composed.answers import Answer
from holdover.evaluation.protocols.composed.design import FULL, REFERENCE, Arm, Design
from holdover.evaluation.protocols.composed.problem import ChunkedProblem
from holdover.evaluation.protocols.composed.run import Answers
from holdover.evaluation.protocols.estimate import Estimate, mean_of, parts, ratio_of, vector

RIGHT, PERCENT, NLL, KL = "right", "percent of full", "nll", "kl"
_READ: dict[str, Callable[[Answer], float]] = {
    RIGHT: lambda answer: float(answer.right),
    NLL: lambda answer: answer.nll,
    KL: lambda answer: answer.kl,
}


@dataclass(frozen=True)
class Row:
    """One metric of one arm on one task.

    Attributes:
        task: the task.
        metric: ``right`` (a share), ``percent of full`` (right answers of those of the full prefill), ``nll`` or
            ``kl`` (nats).
        selector: which tokens were run again; ``full`` is an ordinary prefill.
        initialiser: which recurrent state prompts began with.
        ratio: share of the chunks' tokens that the selector might choose; None where a window decided.
        window: tokens to each side of a seam; None where the ratio decided.
        recomputed: mean effective |U| / N.
        mean: mean over problems; of the percentage, the ratio of the sums.
        low: lower end of its 95 % bootstrap interval over problems.
        high: upper end.
        difference: to the initial state ``last`` on the same positions; None where there is nothing to compare.
        difference_low: lower end of its interval, the pairs resampled together.
        difference_high: upper end.
        count: problems.
    """

    task: str
    metric: str
    selector: str
    initialiser: str
    ratio: float | None
    window: int | None
    recomputed: float
    mean: float
    low: float
    high: float
    difference: float | None
    difference_low: float | None
    difference_high: float | None
    count: int


def summarise(problems: Sequence[ChunkedProblem], answers: Sequence[Answers], design: Design) -> list[Row]:
    """A row for every task, arm and metric. Percentages are left out where the full prefill answers nothing."""
    tasks = dict.fromkeys(problem.task for problem in problems)
    pairs = list(zip(problems, answers, strict=True))
    return [
        row
        for task in tasks
        for row in _task(task, [found for problem, found in pairs if problem.task == task], design)
    ]


def _task(task: str, answers: Sequence[Answers], design: Design) -> Iterator[Row]:
    full = _values(answers, Arm(FULL), RIGHT)
    for arm in design.scored:
        reference = Arm(arm.selection, REFERENCE)
        is_compared = arm.initialiser in design.initialisers and arm != reference and REFERENCE in design.initialisers
        recomputed = fmean(found[arm.name].recomputed for found in answers)
        for metric in _READ:
            values = _values(answers, arm, metric)
            paired = values - _values(answers, reference, metric) if is_compared else None
            versus = None if paired is None else mean_of(paired)
            yield _row(task, metric, arm, recomputed, mean_of(values), versus, len(answers))
            if metric == RIGHT and full.sum():
                versus = None if paired is None else ratio_of(100 * paired, full)
                yield _row(task, PERCENT, arm, recomputed, ratio_of(100 * values, full), versus, len(answers))


def _row(
    task: str, metric: str, arm: Arm, recomputed: float, value: Estimate, versus: Estimate | None, count: int
) -> Row:
    difference, difference_low, difference_high = parts(versus)
    return Row(
        task=task,
        metric=metric,
        selector=arm.selection.selector,
        initialiser=arm.initialiser,
        ratio=arm.selection.ratio,
        window=arm.selection.window,
        recomputed=recomputed,
        mean=value.mean,
        low=value.low,
        high=value.high,
        difference=difference,
        difference_low=difference_low,
        difference_high=difference_high,
        count=count,
    )


def _values(answers: Sequence[Answers], arm: Arm, metric: str) -> Tensor:
    read = _READ[metric]
    return vector([read(found[arm.name]) for found in answers])
