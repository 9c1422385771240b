"""The picture of a diagnosis: errors of constructed states over depth, after LinearKV's Figure 3."""

from __future__ import annotations

from collections.abc import Mapping

from holdover.arch.layout import ModelLayout
from holdover.chunks import StateErrors
from holdover.report.pictures import Picture, picture_of

# an error of zero has no place on a logarithmic axis
_LEAST = 1e-8


def draw_state_errors(errors: Mapping[str, StateErrors], layout: ModelLayout) -> Picture:
    """A line for each initialiser over the recurrent layers; attention layers are grey."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    axes = figure.subplots()
    for layer in layout.kv.layers:
        axes.axvline(layer.index, color="0.9", linewidth=6, zorder=0)
    for name, one in errors.items():
        axes.plot(list(one.layers), [max(_LEAST, error) for error in one.layers.values()], marker=".", label=name)
    axes.set(xlabel="layer", ylabel="relative error", yscale="log")
    figure.legend(loc="outside right upper", fontsize="small")
    worst = ", ".join("{} {:.2g} at layer {}".format(name, *one.worst[::-1]) for name, one in errors.items())
    return picture_of(
        "state-errors", f"Relative error of constructed states before recomputation; worst: {worst}", figure
    )
