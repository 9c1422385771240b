"""A part of the report, and how its figures are written: always with an interval and a count."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from holdover.report.tables import Table

if TYPE_CHECKING:
    from holdover.report.pictures import Picture

T = TypeVar("T")
K = TypeVar("K")
# `open` is what the instances do not tell apart; `rounding` is too small to be about anything else
Verdict = Literal["equal", "rounding", "open", "better", "worse"]

# two-sided 95 %
_Z = 1.959963984540054
# nats below which two fp32 runs of the same tokens differ by the order of their sums
_ROUNDING = 1e-8
# metrics of which less is better
_LOSSES = ("nll", "kl")


@dataclass(frozen=True)
class Section:
    """One part.

    Attributes:
        title: its heading.
        text: paragraphs that say what was done and how to read it.
        tables: figures.
        pictures: the same, drawn.
    """

    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()


def number(value: float | None) -> str:
    """Four significant digits; a dash where there is nothing."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g}"


def brief(value: float) -> str:
    """Two significant digits, or all that are whole."""
    # from 99.5 on, two digits would be written with an exponent
    return f"{value:,.0f}" if abs(value) >= 99.5 else f"{value:.2g}"


def signed(value: float | None) -> str:
    """The same with a sign; a dash where there is nothing."""
    return "-" if value is None else ("" if value < 0 else "+") + brief(value + 0.0)


def interval(low: float | None, high: float | None, write: Callable[[float], str] = number) -> str:
    """Both ends; a dash where there is none."""
    return "-" if low is None or high is None else f"{write(low)} to {write(high)}"


def estimate(row: Mapping[str, Any], count: int, unit: str = "") -> str:
    """A mean with its unit, and its interval and count in brackets."""
    return f"{brief(row['mean'])}{unit} ({interval(row['low'], row['high'], brief)}, n = {count})"


def is_rounding(low: float, high: float) -> bool:
    """Whether an interval in nats is too narrow and too close to zero to be about anything but rounding."""
    return max(abs(low), abs(high)) < _ROUNDING


def is_loss(metric: str) -> bool:
    """Whether less of a metric is better."""
    return metric in _LOSSES


def verdict(row: Mapping[str, Any], metric: str) -> Verdict:
    """What a row's difference to its reference says, by its interval."""
    low, high = row["difference_low"], row["difference_high"]
    if low == high == 0:
        return "equal"
    if is_loss(metric) and is_rounding(low, high):
        return "rounding"
    if low <= 0 <= high:
        return "open"
    return "better" if (high < 0) == is_loss(metric) else "worse"


def harm(row: Mapping[str, Any], metric: str) -> float:
    """By how much a row is worse than its reference; negative where it is better."""
    found = float(row["difference"])
    return found if is_loss(metric) else -found


def difference(row: Mapping[str, Any], metric: str, *where: str) -> str:
    """A row's difference with its unit, interval and count, and where it was seen."""
    unit = " nats" if is_loss(metric) else ""
    ends, count = interval(row["difference_low"], row["difference_high"], signed), row["count"]
    return f"{signed(row['difference'])}{unit} ({'; '.join((f'{ends}, n = {count}', *where))})"


def wilson(right: int, asked: int) -> tuple[float, float]:
    """95 % interval of a share, after Wilson."""
    share, spread = right / asked, _Z * _Z / asked
    centre = (share + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(share * (1 - share) / asked + spread / (4 * asked))
    return max(0.0, centre - half), min(1.0, centre + half)


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by key, both in the order of their first appearance."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found
