"""A part of the findings, and the words that several parts use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdover.report.quality.results import Facts
from holdover.report.quality.section import Verdict, grouped, harm, verdict

# of something against its reference
SAID: Mapping[Verdict, str] = {
    "better": "better",
    "worse": "worse",
    "open": "not told apart",
    "rounding": "equal but for rounding",
    "equal": "equal in every instance",
}


@dataclass(frozen=True)
class Part:
    """One part.

    Attributes:
        title: its heading.
        findings: a sentence or two each, strongest first.
        short: what of it stands at the beginning of the page.
    """

    title: str
    findings: tuple[str, ...]
    short: tuple[str, ...] = ()


def listed(names: Iterable[object]) -> str:
    """Each once, in the order of first appearance: ``a, b and c``."""
    texts = list(dict.fromkeys(map(str, names)))
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def counted(count: int, name: str) -> str:
    """A number of things: ``1 cell``, ``2 cells``."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def arm_of(row: Facts, name: str) -> str:
    """What a row's field calls its arm, with its cutoff."""
    return str(row[name]) if row["w_max"] is None else f"{row[name]} at W_max {row['w_max']}"


def sorted_out(rows: Sequence[Facts], metric: str | None = None) -> dict[Verdict, list[Facts]]:
    """Rows by what their differences say, the most harmful first.

    Args:
        rows: with a difference each.
        metric: of all rows; None if each names its own.
    """

    def metric_of(row: Facts) -> str:
        return str(row["metric"]) if metric is None else metric

    ordered = sorted(rows, key=lambda row: -harm(row, metric_of(row)))
    return grouped(ordered, lambda row: verdict(row, metric_of(row)))


def told_apart(rows: Sequence[Facts], metric: str) -> list[Facts]:
    """Rows whose interval excludes zero by more than rounding, the largest difference first."""
    found = sorted_out(rows, metric)
    return sorted([*found.get("worse", []), *found.get("better", [])], key=lambda row: -abs(row["difference"]))
