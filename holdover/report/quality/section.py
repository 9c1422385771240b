"""A part of the report, and how its figures are written: always with an interval and a count."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from holdover.report.tables import Table

if TYPE_CHECKING:
    from holdover.report.pictures import Picture

T = TypeVar("T")
K = TypeVar("K")

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
        findings: what came of it, a sentence each.
    """

    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    findings: tuple[str, ...] = ()


def number(value: float | None) -> str:
    """Four significant digits; a dash where there is nothing."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g}"


def signed(value: float | None) -> str:
    """Two significant digits with a sign; a dash where there is nothing."""
    return "-" if value is None else f"{value + 0.0:+.2g}"


def interval(low: float | None, high: float | None, write: Callable[[float], str] = number) -> str:
    """Both ends; a dash where there is none."""
    return "-" if low is None or high is None else f"{write(low)} to {write(high)}"


def estimate(row: Mapping[str, Any], count: int) -> str:
    """A mean with its interval and count, in brackets where a sentence goes on."""
    return f"{number(row['mean'])} ({interval(row['low'], row['high'])}, n = {count})"


def is_rounding(low: float, high: float) -> bool:
    """Whether an interval in nats is too narrow and too close to zero to be about anything but rounding."""
    return max(abs(low), abs(high)) < _ROUNDING


def is_loss(metric: str) -> bool:
    """Whether less of a metric is better."""
    return metric in _LOSSES


def compared(row: Mapping[str, Any], metric: str) -> str:
    """How a row's difference to its reference reads: better, worse, or not told apart from it."""
    low, high = row["difference_low"], row["difference_high"]
    figures = f"{signed(row['difference'])}, {interval(low, high, signed)}, n = {row['count']}"
    if low == high == 0:
        return f"equal in every instance (n = {row['count']})"
    if is_loss(metric) and is_rounding(low, high):
        return f"equal but for rounding ({figures})"
    if low <= 0 <= high:
        return f"not told apart ({figures})"
    return f"{'better' if (high < 0) == is_loss(metric) else 'worse'} ({figures})"


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
