"""A table before anyone decides where it is shown, and how numbers are written in one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

_SHOWN_RUNS = 4


@dataclass(frozen=True)
class Table:
    """Text in rows.

    Attributes:
        title: what it shows.
        columns: one heading a column.
        rows: as many cells each.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def size(count: int) -> str:
    """Bytes in decimal units."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count} B"


def ratio(value: float | None) -> str:
    """A ratio; a dash where there is none."""
    return "-" if value is None or math.isinf(value) else f"{value:.2f}x"


def ranges(indices: Sequence[int]) -> str:
    """Indices with runs shortened, and long lists of runs cut: ``0-2, 4-6, ..., 60-62``."""
    runs = [[index for _, index in run] for _, run in groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0])]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    # a stack of dozens of layers would otherwise fill the terminal with its pattern
    shown = texts if len(texts) <= _SHOWN_RUNS else [*texts[: _SHOWN_RUNS - 2], "...", texts[-1]]
    return ", ".join(shown)
