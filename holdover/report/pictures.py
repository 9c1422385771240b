"""Pictures of a retention report, after DASC's Figure 1 and Figures 5 to 8. Importing this needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from textwrap import wrap
from typing import Any

import torch

from holdover.arch.layout import RecurrentLayer
from holdover.errors import ConfigError
from holdover.report.retention import RetentionReport, Window
from holdover.retention.summary import head_fractions, one_step_decay

try:
    from matplotlib import colormaps
    from matplotlib.axes import Axes
    from matplotlib.colors import BoundaryNorm
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    raise ConfigError("pictures need matplotlib, which is not installed: pip install 'holdover[report]'") from error

# horizons are shown in bins, in tokens; the last has no end
_BINS = (0, 4, 16, 64, 128, 512, 1024, 4096)
# what is no recurrent head: the rows of attention layers, above all
_COLOURS = colormaps["viridis"].with_extremes(bad="0.75")
_PROFILE_BINS = 50
# characters of a caption's line
_TITLE_WIDTH = 95


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        name: of its file, without suffix.
        caption: what it shows, with the figures that belong to it; also its title.
        png: the file.
    """

    name: str
    caption: str
    png: bytes


def draw(report: RetentionReport) -> list[Picture]:
    """All pictures of a report: the decay profile, a map of heads, and the layers' retained fractions.

    Where heads are the units, the map shows their horizons (Figure 5). Where channels are, there is a map of retained
    fractions for each cutoff (Figures 6 and 8) and one of the channels of its typical layer (Figure 7).
    """
    pictures = [_decay_profile(report)]
    if all(layer.unit == "head" for layer in report.decay.layout.state.layers):
        pictures.append(_head_horizons(report))
    else:
        for window in report.windows:
            pictures += [_retained_channels(report, window), _typical_channels(report, window)]
    return [*pictures, _layer_means(report)]


def _decay_profile(report: RetentionReport) -> Picture:
    plan = report.plan
    decay = one_step_decay(torch.cat(plan.horizons), plan.epsilon).sort().values
    median = float(decay.median())
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    density, cumulated = figure.subplots(1, 2)
    density.hist(decay.numpy(), bins=_PROFILE_BINS, range=(0, 1))
    density.set(xlabel="one-step decay", ylabel="units")
    cumulated.plot(decay.numpy(), torch.linspace(0, 1, len(decay)).numpy())
    cumulated.axvline(median, linestyle="--", color="0.4")
    cumulated.set(xlabel="one-step decay", ylabel="fraction of units", xlim=(0, 1), ylim=(0, 1))
    return picture_of("decay-profile", f"Static one-step decay of {len(decay):,} units, median {median:.3f}", figure)


def _head_horizons(report: RetentionReport) -> Picture:
    figure, axes = _map_of_heads(report)
    _show_horizons(figure, axes, _stacked(report, report.plan.horizons))
    return picture_of("head-horizons", "Static horizon of every head in tokens", figure)


def _retained_channels(report: RetentionReport, window: Window) -> Picture:
    summary = window.summary
    layers = report.decay.layout.state.layers
    fractions = [head_fractions(mask, layer) for mask, layer in zip(window.plan.retained, layers, strict=True)]
    figure, axes = _map_of_heads(report)
    image = axes.imshow(_stacked(report, fractions), _COLOURS, aspect="auto", interpolation="nearest", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="retained fraction of channels")
    empty = summary.pairs - summary.mixed - summary.whole
    caption = (
        f"Retained channels at {summary.w_max:,} tokens: of {summary.pairs:,} layer-head pairs {summary.mixed:,} "
        f"({100 * summary.mixed_pairs:.1f} %) keep some, {empty:,} none, {summary.whole:,} all; "
        f"layer means {_range(window)}"
    )
    return picture_of(f"retained-w{summary.w_max}", caption, figure)


def _typical_channels(report: RetentionReport, window: Window) -> Picture:
    summary = window.summary
    layer: RecurrentLayer = report.decay.layout.state.layers[summary.typical_layer]
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    _show_horizons(figure, axes, report.plan.horizons[summary.typical_layer].view(layer.heads, -1).numpy())
    axes.set(xlabel="key channel", ylabel="head")
    mean = summary.layer_means[summary.typical_layer]
    caption = (
        f"Horizons of layer {layer.index}, whose retained fraction at {summary.w_max:,} tokens ({mean:.3f}) is closest "
        "to the median of the layers"
    )
    return picture_of(f"channels-w{summary.w_max}", caption, figure)


def _layer_means(report: RetentionReport) -> Picture:
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    axes = figure.subplots()
    indices = [layer.index for layer in report.decay.layout.state.layers]
    for window in report.windows:
        label = f"{window.summary.w_max:,} tokens ({_range(window)})"
        axes.plot(indices, window.summary.layer_means, marker=".", label=label)
    axes.set(xlabel="layer", ylabel="retained fraction", ylim=(-0.02, 1.02))
    figure.legend(loc="outside right upper", title="cutoff (range)", fontsize="small")
    return picture_of("layer-means", "Mean retained fraction of every recurrent layer", figure)


def _map_of_heads(report: RetentionReport) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, min(2 + 0.12 * report.decay.layout.num_layers, 12)), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel="head", ylabel="layer")
    return figure, axes


def _stacked(report: RetentionReport, values: Iterable[torch.Tensor]) -> Any:
    """One value a head, ``[layers of the whole stack, heads]``, NaN where there is no recurrent head."""
    layout = report.decay.layout
    stacked = torch.full((layout.num_layers, max(layer.heads for layer in layout.state.layers)), math.nan)
    for layer, row in zip(layout.state.layers, values, strict=True):
        stacked[layer.index, : layer.heads] = row
    return stacked.numpy()


def _show_horizons(figure: Figure, axes: Axes, values: Any) -> None:
    norm = BoundaryNorm(_BINS, _COLOURS.N, extend="max")
    image = axes.imshow(values, _COLOURS, norm=norm, aspect="auto", interpolation="nearest")
    figure.colorbar(image, ax=axes, label="static horizon in tokens")


def _range(window: Window) -> str:
    return "{:.3f} to {:.3f}".format(*window.summary.layer_range)


def picture_of(name: str, caption: str, figure: Figure) -> Picture:
    """A figure with its caption as its title."""
    file = BytesIO()
    figure.suptitle("\n".join(wrap(caption, _TITLE_WIDTH)), fontsize="small")
    figure.savefig(file, format="png", dpi=120)
    return Picture(name, caption, file.getvalue())
