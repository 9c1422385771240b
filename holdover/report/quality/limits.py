"""What the figures cannot show."""

from __future__ import annotations

from holdover.report.quality.results import Results
from holdover.report.quality.section import Section

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
    return Section("What models this small cannot show", (_TEXT,))
