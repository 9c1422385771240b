"""What the models are, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from holdover.report.quality.findings.part import Part
from holdover.report.quality.models import pooled_scores, units
from holdover.report.quality.results import ModelResults, Results
from holdover.report.quality.section import brief, interval, number, wilson

# share of right answers that a task counts as solved at
_SOLVED = 0.9


def models(results: Results) -> Part:
    """A sentence a model."""
    found = ["; ".join(parts) for model in results.models if (parts := list(_of(model)))]
    return Part("The models", tuple(f"{line}." for line in found))


def _of(model: ModelResults) -> Iterator[str]:
    if "inspect" not in model.files:
        return
    facts = model.files["inspect"]
    horizons = units(facts)
    beyond = sum(horizon > facts["max_context"] for horizon in horizons) / len(horizons)
    yield (
        f"{model.name}: static horizons of its {len(horizons):,} units are {brief(horizons[0])} to "
        f"{brief(horizons[-1])} tokens, median {brief(median(horizons))}, {beyond:.1%} beyond its context"
    )
    if "held_out" in model.trained:
        held_out = model.trained["held_out"]
        pieces = f"{held_out['rows']} pieces of {held_out['length']:,} tokens"
        yield f"perplexity {number(held_out['perplexity'])} on {pieces} of held-out text"
    weak = [
        f"{task} {right / asked:.2f} ({interval(*wilson(right, asked), brief)}, n = {asked})"
        for (task, length), (right, asked) in pooled_scores(model).items()
        if length == "all" and wilson(right, asked)[0] < _SOLVED
    ]
    if weak:
        yield f"tasks not shown to be answered in nine of ten prompts: {', '.join(weak)}"
