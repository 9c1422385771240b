"""Panels of one kind side by side. Importing this needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from typing import TypeVar

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from holdover.report.pictures import Picture, picture_of
from holdover.report.quality.results import Facts

T = TypeVar("T")

_COLUMNS = 3
_COLOURS = 128
# inches; titles and legends need some room under one panel too
_WIDTH, _HEIGHT, _NARROWEST = 3.6, 2.7, 7.2


def wrapped(cells: Mapping[str, T]) -> list[dict[str, T]]:
    """Cells in rows of nearly equal length."""
    rows = -(-len(cells) // _COLUMNS)
    columns = -(-len(cells) // rows)
    items = list(cells.items())
    return [dict(items[start : start + columns]) for start in range(0, len(items), columns)]


def panels(rows: Sequence[Mapping[str, T]], draw: Callable[[Axes, T], None], *, alike: bool = False) -> Figure:
    """A figure with a panel for every cell, titled by its name, and one legend of all labels.

    Args:
        rows: cells by name, a row of panels each.
        draw: draws a cell.
        alike: whether the panels of a row have the same y axis.
    """
    columns = max(map(len, rows))
    figure = Figure(figsize=(max(_NARROWEST, _WIDTH * columns), _HEIGHT * len(rows) + 0.8), layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False, sharey="row" if alike else "none")
    labels: dict[str, Artist] = {}
    for places, row in zip(grid, rows, strict=True):
        for axes, (title, cell) in zip(places, row.items(), strict=False):
            draw(axes, cell)
            axes.set_title(title, fontsize="small")
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                labels.setdefault(label, handle)
        for axes in places[len(row) :]:
            axes.set_axis_off()
    if labels:
        figure.legend(
            list(labels.values()), list(labels), loc="outside lower center", ncols=max(4, 2 * columns), fontsize="small"
        )
    return figure


def whiskers(rows: Sequence[Facts], value: str, low: str, high: str) -> tuple[list[float], list[float]]:
    """How far intervals reach below and above their value."""
    # a mean of equal numbers may lie outside by its last bit
    below = [max(row[value] - row[low], 0.0) for row in rows]
    return below, [max(row[high] - row[value], 0.0) for row in rows]


def plot_of(name: str, caption: str, figure: Figure) -> Picture:
    """A figure as a picture of few colours: lines and bands need no more, and it is a fraction of the bytes."""
    picture = picture_of(name, caption, figure)
    file = BytesIO()
    image = Image.open(BytesIO(picture.png)).convert("RGB")
    image.quantize(_COLOURS, dither=Image.Dither.NONE).save(file, "png", optimize=True)
    return replace(picture, png=file.getvalue())
