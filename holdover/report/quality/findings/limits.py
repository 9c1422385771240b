"""What the figures cannot show: how small the models are, and how wide their intervals."""

from __future__ import annotations

from collections.abc import Iterator

from holdover.report.quality.checkpoints import CONTROL, PROTOCOL, kind
from holdover.report.quality.findings.part import Part, listed
from holdover.report.quality.models import units
from holdover.report.quality.results import ModelResults, Results
from holdover.report.quality.section import brief, is_loss, wilson

# scores of dense checkpoints above and below which an arm's score says little
_CEILING, _FLOOR = 0.98, 0.05


def limits(results: Results) -> Part:
    """A sentence a model."""
    found = [(model.name, list(_of(model))) for model in results.models]
    lines = tuple(f"{name}: {'; '.join(parts)}." for name, parts in found if parts)
    return Part("What models this small cannot show", lines)


def _of(model: ModelResults) -> Iterator[str]:
    if "inspect" in model.files:
        facts = model.files["inspect"]
        yield (
            f"{facts['layers']} recurrent layers and {len(units(facts)):,} units are all that a plan can choose from"
        )
    rows = [row for row in model.rows(PROTOCOL) if kind(row) != CONTROL]
    answers, losses = ([row for row in rows if is_loss(row["metric"]) == loss] for loss in (False, True))
    if answers:
        count = min(row["count"] for row in answers)
        yield f"fewer than {wilson(0, count)[1]:.0%} of a task's answers may change unseen (n = {count})"
    halves = [(row["difference_high"] - row["difference_low"]) / 2 for row in losses if row["difference"] is not None]
    if halves:
        yield f"intervals of a text's difference reach ±{brief(max(halves))} nats"
    dense = {row["task"]: row["mean"] for row in answers if row["difference"] is None}
    full = [task for task, mean in dense.items() if mean >= _CEILING]
    empty = [task for task, mean in dense.items() if mean <= _FLOOR]
    if full:
        yield f"dense checkpoints solve {listed(full)}, where only losses could be seen"
    if empty:
        yield f"dense checkpoints do not solve {listed(empty)}, where nothing is seen"
