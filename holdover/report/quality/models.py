"""What the models are: horizons, sizes, and what they have learnt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from holdover.report.quality.plots import panels, plot_of, wrapped
from holdover.report.quality.results import Facts, ModelResults, Results
from holdover.report.quality.section import Section, number, wilson
from holdover.report.tables import Table, ratio, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from holdover.report.pictures import Picture

_TEXT = (
    "Horizons come from the weights ([retention](../retention.md)): tokens until a thousandth of a unit's content is "
    "left, at the gate input that the architecture's gate is given by default. Scores are exact answers to fresh "
    "prompts, as `training/` measured them."
)
# bins of the histogram, in powers of two; the last horizon may be astronomical
_POWERS = range(1, 15)
_SIZES = ("model", "architecture", "layers", "units a layer", "context", "checkpoint", "shortest", "median", "longest")
_CUTOFFS = ("model", "W_max", "units kept", "smaller by", "padded by", "INT8 smaller by")


def models(results: Results) -> Section | None:
    """The section; None where no model was inspected."""
    seen = [(model, model.files["inspect"]) for model in results.models if "inspect" in model.files]
    if not seen:
        return None
    tables = [
        Table("Models", _SIZES, tuple(_sizes(model.name, facts) for model, facts in seen)),
        Table("Checkpoints by cutoff", _CUTOFFS, tuple(row for model, facts in seen for row in _cutoffs(model, facts))),
        *(table for model in results.models for table in _scores(model)),
    ]
    return Section("The models", (_TEXT,), tuple(tables), (_histogram(seen),))


def units(facts: Facts) -> list[float]:
    """Horizons of every unit in tokens."""
    return sorted(horizon for layer in facts["horizons"] for horizon in layer)


def pooled_scores(model: ModelResults) -> dict[tuple[str, str], tuple[int, int]]:
    """Right answers and prompts by task and length, over every file of training's scores."""
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for name, facts in model.trained.items():
        if not name.startswith("scores"):
            continue
        for task, lengths in facts["scores"].items():
            for length, cell in lengths.items():
                right, asked = sums.get((task, length), (0, 0))
                sums[task, length] = right + round(cell["exact"] * cell["prompts"]), asked + cell["prompts"]
    return sums


def _sizes(name: str, facts: Facts) -> tuple[str, ...]:
    horizons = units(facts)
    ends = (horizons[0], median(horizons), horizons[-1])
    layers = f"{facts['layers']} {facts['family']}, {facts['attention_layers']} attention"
    nbytes, context = size(facts["bytes"]["checkpoint"]), f"{facts['max_context']:,}"
    return (name, facts["architecture"], layers, str(facts["units_per_layer"]), context, nbytes, *map(number, ends))


def _cutoffs(model: ModelResults, facts: Facts) -> Iterator[tuple[str, ...]]:
    for window in facts["windows"]:
        kept = f"{window['retained_fraction']:.1%}"
        ratios = (ratio(window[name]) for name in ("c_ckpt", "c_ckpt_padded", "c_ckpt_int8"))
        yield (model.name, str(window["w_max"]), kept, *ratios)


def _scores(model: ModelResults) -> Iterator[Table]:
    sums = pooled_scores(model)
    if not sums:
        return
    tasks, lengths = dict.fromkeys(task for task, _ in sums), dict.fromkeys(length for _, length in sums)
    ordered = sorted(lengths, key=lambda length: float("inf") if length == "all" else int(length))
    rows = tuple((task, *(_score(sums.get((task, length))) for length in ordered)) for task in tasks)
    yield Table(f"{model.name}: exact answers by task and length in tokens", ("task", *ordered), rows)


def _score(cell: tuple[int, int] | None) -> str:
    if cell is None:
        return "-"
    low, high = wilson(*cell)
    return f"{cell[0] / cell[1]:.3f} ({low:.2f} to {high:.2f}, n = {cell[1]})"


def _histogram(seen: Sequence[tuple[ModelResults, Facts]]) -> Picture:
    edges = [2.0**power for power in _POWERS]

    def draw(axes: Axes, facts: Facts) -> None:
        shown = [min(max(horizon, edges[0]), edges[-1]) for horizon in units(facts)]
        axes.hist(shown, bins=edges, color="C0")
        for window in facts["windows"]:
            axes.axvline(window["w_max"], color="0.4", linestyle="--", linewidth=0.8)
        axes.set(xscale="log", xlabel="static horizon in tokens", ylabel="units")

    figure = panels(wrapped({model.name: facts for model, facts in seen}), draw)
    caption = "Static horizons of all units; dashed: cutoffs. The first and last bins hold what lies beyond"
    return plot_of("horizons", caption, figure)
