"""Panels of one kind side by side. Importing this needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from io import BytesIO
from typing import TypeVar

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from holdover.report.pictures import Picture, picture_of

T = TypeVar("T")

_COLUMNS = 3
_COLOURS = 128
# inches; titles and legends need some room under one panel too
_WIDTH, _HEIGHT, _NARROWEST = 3.6, 2.7, 7.2


def panels(cells: Mapping[str, T], draw: Callable[[Axes, T], None]) -> Figure:
    """A figure with a panel for every cell, titled by its name, and one legend of all labels."""
    rows = -(-len(cells) // _COLUMNS)
    columns = -(-len(cells) // rows)
    figure = Figure(figsize=(max(_NARROWEST, _WIDTH * columns), _HEIGHT * rows + 0.8), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    labels: dict[str, Artist] = {}
    for axes, (title, cell) in zip(grid.flat, cells.items(), strict=False):
        draw(axes, cell)
        axes.set_title(title, fontsize="small")
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            labels.setdefault(label, handle)
    for axes in grid.flat[len(cells) :]:
        axes.set_axis_off()
    if labels:
        figure.legend(
            list(labels.values()), list(labels), loc="outside lower center", ncols=max(4, 2 * columns), fontsize="small"
        )
    return figure


def plot_of(name: str, caption: str, figure: Figure) -> Picture:
    """A figure as a picture of few colours: lines and bands need no more, and it is a fraction of the bytes."""
    picture = picture_of(name, caption, figure)
    file = BytesIO()
    image = Image.open(BytesIO(picture.png)).convert("RGB")
    image.quantize(_COLOURS, dither=Image.Dither.NONE).save(file, "png", optimize=True)
    return replace(picture, png=file.getvalue())
