"""The page of findings: in short, against the papers, and part by part."""

from __future__ import annotations

from collections.abc import Callable

from holdover.report.quality.findings.checkpoints import checkpoints
from holdover.report.quality.findings.combinations import combinations
from holdover.report.quality.findings.composed import composed
from holdover.report.quality.findings.decode import decode
from holdover.report.quality.findings.deferred import deferred
from holdover.report.quality.findings.limits import limits
from holdover.report.quality.findings.models import models
from holdover.report.quality.findings.papers import papers
from holdover.report.quality.findings.part import Part
from holdover.report.quality.markdown import listing
from holdover.report.quality.results import Results

PARTS: tuple[Callable[[Results], Part], ...] = (
    papers,
    checkpoints,
    composed,
    deferred,
    combinations,
    decode,
    models,
    limits,
)
# sentences that stand at the beginning
MOST = 10
_INTRO = (
    "Made by `make report` from the same files as [the tables](index.md); no figure is typed. Brackets hold the 95 % "
    "interval, of speeds what the 10th and 90th percentiles of both times allow, and the number of instances. A "
    "difference whose interval holds zero is *not told apart*: the instances do not show one, which is no proof that "
    "there is none; of so many cells about one interval in twenty misses by chance. KL of contexts composed of chunks "
    "is of the first token of the answer. Arms are explained beside the tables; a cell is one arm at one W_max on one "
    "task. *In short* has what contradicts the papers, then of every part the largest effect that is told apart."
)


def findings_page(results: Results) -> str:
    """The page as Markdown."""
    parts = [part for make in PARTS if (part := make(results)).findings]
    short = tuple(line for part in parts for line in part.short)[:MOST]
    shown = [Part("In short", short), *parts] if short else parts
    return listing("Findings", (_INTRO,), [(part.title, part.findings) for part in shown])
