"""What the figures cannot show: how small the models are, and how wide their intervals."""

from __future__ import annotations

from collections.abc import Iterator

from holdover.report.quality.checkpoints import PROTOCOL
from holdover.report.quality.models import units
from holdover.report.quality.results import ModelResults, Results
from holdover.report.quality.section import Section, grouped, is_loss, number

# scores of dense checkpoints above and below which an arm's score says little
_CEILING, _FLOOR = 0.98, 0.05
_TEXT = (
    "The bundled models have about six million parameters. They recall what stands in their context and little else, "
    "so this page can show that a mechanism works as it is defined, in which direction it errs, and how its errors "
    "grow with length, cutoff and number of restores. It cannot show what the same setting costs a large model: how "
    "such a model divides its memory between attention and recurrent states, how redundant its states are, and which "
    "of its abilities rest on them are facts about that model. Reasoning, instruction following, knowledge and "
    "contexts beyond a few thousand tokens are out of reach here; neither are quantised weights, tensor parallelism "
    "or mixtures of experts tried. A plan for another model is measured on that model ([quality](../quality.md)), and "
    "`holdover eval --preset` names the sets that the papers used ([evaluation](../evaluation.md))."
)


def limits(results: Results) -> Section:
    """The section."""
    return Section(
        "What models this small cannot show",
        (_TEXT,),
        findings=tuple(line for model in results.models for line in _of(model)),
    )


def _of(model: ModelResults) -> Iterator[str]:
    if "inspect" in model.files:
        facts = model.files["inspect"]
        yield (
            f"{model.name}: {facts['layers']} recurrent layers and {len(units(facts)):,} units, which is as fine as a "
            "plan can choose."
        )
    rows = [row for row in model.rows(PROTOCOL) if row["difference"] is not None]
    for metric, same in grouped(rows, lambda row: row["metric"]).items():
        half = max((row["difference_high"] - row["difference_low"]) / 2 for row in same)
        yield f"{model.name}, {metric}: the widest interval of a difference is ±{number(half)}; less is not resolved."
    dense = {
        row["task"]: row["mean"]
        for row in model.rows(PROTOCOL)
        if row["difference"] is None and not is_loss(row["metric"])
    }
    full = [task for task, mean in dense.items() if mean >= _CEILING]
    empty = [task for task, mean in dense.items() if mean <= _FLOOR]
    if full:
        yield f"{model.name}: {', '.join(full)} are solved with dense checkpoints, so only losses could be seen there."
    if empty:
        yield f"{model.name}: {', '.join(empty)} are not solved with dense checkpoints, so nothing is seen there."
