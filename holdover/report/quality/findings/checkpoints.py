"""What keeping less of a checkpoint cost, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from holdover.report.quality.checkpoints import CONTROL, PROTOCOL, arm_name, capacities, kind, masks, planned
from holdover.report.quality.findings.part import SAID, Part, arm_of, counted, listed, sorted_out
from holdover.report.quality.results import Facts, ModelResults, Results, Rows
from holdover.report.quality.section import brief, difference, harm, is_loss, verdict
from holdover.report.tables import ratio


@dataclass(frozen=True)
class Control:
    """What a plan keeps against random masks of as many units, at one task and cutoff.

    Attributes:
        where: task and cutoff.
        worse: by how much the masks' mean is worse than the plan's; nats, or a share of right answers.
        deviation: sample standard deviation of the masks, likewise.
    """

    where: str
    worse: float
    deviation: float


def checkpoints(results: Results) -> Part:
    """What is not as before and what random masks do, a sentence a model each; then what is as before."""
    models = [model for model in results.models if model.of(PROTOCOL)]
    changed = [_changed(model) for model in sorted(models, key=lambda model: -_worst(_arms(model)))]
    drawn = [_random(model) for model in sorted(models, key=lambda model: -_worst(_losing(model.rows(PROTOCOL))))]
    found = filter(None, [*changed, *drawn, *_equal(models)])
    return Part("Checkpoints that keep less (DASC)", tuple(found), tuple(_short(models)))


def controls(model: ModelResults) -> list[Control]:
    """Every task and cutoff that has both, where the masks are worst first."""
    rows = model.rows(PROTOCOL)
    plan = planned(rows)
    pairs = [(plan[cell], same) for cell, same in masks(rows).items() if cell in plan]
    return sorted((_control(row, same) for row, same in pairs), key=lambda control: -control.worse)


def _control(row: Facts, same: Sequence[Facts]) -> Control:
    means = [one["mean"] for one in same]
    worse = (mean(means) - row["mean"]) * (1 if is_loss(row["metric"]) else -1)
    # a mean of five equal floats may be off by its last bit
    settled = 0.0 if all(value == row["mean"] for value in means) else worse
    return Control(_place(row), settled, stdev(means) if len(means) > 1 else 0.0)


def _arms(model: ModelResults) -> list[Facts]:
    return [row for row in model.rows(PROTOCOL) if row["difference"] is not None and kind(row) != CONTROL]


def _task(row: Facts) -> str:
    return str(row["task"] or row["metric"])


def _place(row: Facts) -> str:
    return f"{_task(row)} at W_max {row['w_max']}"


def _cell(row: Facts) -> str:
    return f"{arm_of(row, 'arm')} on {_task(row)}"


def _figures(rows: Sequence[Facts]) -> str:
    return listed(f"{_cell(row)} {difference(row, row['metric'])}" for row in rows)


def _equal(models: Sequence[ModelResults]) -> Iterator[str]:
    same = [row for model in models for row in sorted_out(_arms(model)).get("equal", [])]
    if not same:
        return
    tasks = {_task(row) for row in same}
    times: list[str] = []
    for model in models:
        asked = [row for row in _arms(model) if _task(row) in tasks]
        what = "" if times else " cells of arm, W_max and task"
        times.append(f"{len(sorted_out(asked).get('equal', []))} of {len(asked)}{what} on {model.name}")
    yield (
        f"On {listed(map(_task, same))} {listed(row['arm'] for row in same)} do as dense does in every instance (n = "
        f"{min(row['count'] for row in same)} each) in {listed(times)}."
    )


def _changed(model: ModelResults) -> str:
    found = sorted_out(_arms(model))
    if not found.keys() - {"equal"}:
        return ""
    parts = [f"{said} than dense: {_figures(found[said])}" for said in ("worse", "better") if said in found]
    parts = parts or ["nothing is worse than dense"]
    if "open" in found:
        furthest = max(found["open"], key=lambda row: harm(row, row["metric"]))
        parts.append(f"not told apart: {counted(len(found['open']), 'cell')}, the furthest off {_figures([furthest])}")
    if "rounding" in found:
        parts.append(f"{SAID['rounding']}: {counted(len(found['rounding']), 'cell')}")
    return f"{model.name}: {'; '.join(parts)}."


def _random(model: ModelResults) -> str:
    found = controls(model)
    if not found:
        return ""
    parts = [_counted_masks([model])]
    if _losing(model.rows(PROTOCOL)):
        parts.append(f", at most by {_worst_mask(model)}")
    if found[0].worse > 0:
        by = f"{brief(found[0].worse)} ({found[0].where}; sample sd {brief(found[0].deviation)})"
        parts.append(f". Their mean is worse than `nr` by up to {by}")
    return f"{model.name}: {''.join(parts)}."


def _counted_masks(models: Sequence[ModelResults]) -> str:
    """How many random masks of all models are told to lose."""
    rows = [(model.name, row) for model in models for row in model.rows(PROTOCOL) if kind(row) == CONTROL]
    every = {(name, arm_name(row)) for name, row in rows}
    losing = {(name, arm_name(row)) for name, row in rows if verdict(row, row["metric"]) == "worse"}
    return f"{len(losing)} of {len(every)} random masks of as many units are worse than dense on some task"


def _worst_mask(model: ModelResults, *where: str) -> str:
    """The mask that is told to lose most, and the plan in the same place."""
    rows = model.rows(PROTOCOL)
    worst = _losing(rows)[0]
    plan = planned(rows).get((worst["task"], worst["metric"], worst["w_max"]))
    there = "" if plan is None else f", where `nr` is {SAID[verdict(plan, plan['metric'])]}"
    return f"{difference(worst, worst['metric'], ', '.join((*where, _place(worst))))}{there}"


def _losing(rows: Rows) -> list[Facts]:
    """Random masks that are worse than dense, the most harmful first."""
    return sorted_out([row for row in rows if kind(row) == CONTROL]).get("worse", [])


def _short(models: Sequence[ModelResults]) -> Iterator[str]:
    arms = [row for model in models for row in _arms(model)]
    if not arms:
        return
    found = sorted_out(arms)
    worse = found.get("worse", [])
    counts = f"{len(found.get('equal', []))} are equal in every instance and {len(worse)} are worse"
    most = ""
    if worse:
        model, facts = _origin(models, worse[0])
        smaller = capacities(facts).get(arm_name(worse[0]))
        by = difference(worse[0], worse[0]["metric"], f"{model.name}, {_cell(worse[0])}")
        most = f", at most by {by}" + ("" if smaller is None else f", where a checkpoint is {ratio(smaller)} smaller")
    yield f"Checkpoints that keep less, against dense ones: of {len(arms)} cells of model, arm and task {counts}{most}."
    losing = _losing([row for model in models for row in model.rows(PROTOCOL)])
    if losing:
        model, _ = _origin(models, losing[0])
        yield f"{_counted_masks(models)}, at most by {_worst_mask(model, model.name)}."


def _worst(rows: Rows) -> float:
    """The greatest harm that is told apart; zero if there is none."""
    return max((harm(row, row["metric"]) for row in sorted_out(rows).get("worse", [])), default=0.0)


def _origin(models: Sequence[ModelResults], wanted: Facts) -> tuple[ModelResults, Facts]:
    """Where a row comes from."""
    return next(
        (model, facts)
        for model in models
        for _, facts in model.of(PROTOCOL)
        if any(row is wanted for row in facts["rows"])
    )
