"""Where the figures differ from what the papers found, and where they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from holdover.report.quality.findings.comparison import Comparison
from holdover.report.quality.findings.dasc import horizons, masks, retrieval
from holdover.report.quality.findings.linearkv import initial_state, naive_reuse
from holdover.report.quality.findings.part import Part
from holdover.report.quality.results import ModelResults, Results

_COMPARED: tuple[Callable[[Sequence[ModelResults]], Iterator[Comparison]], ...] = (
    retrieval,
    initial_state,
    naive_reuse,
    horizons,
    masks,
)


def papers(results: Results) -> Part:
    """Contradictions first."""
    found = [one for compare in _COMPARED for one in compare(results.models)]
    ordered = sorted(found, key=lambda one: not one.short)
    return Part(
        "What differs from the papers, and what does not",
        tuple(one.text for one in ordered),
        tuple(one.short for one in ordered if one.short),
    )
