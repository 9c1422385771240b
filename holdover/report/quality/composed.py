"""What contexts composed of chunks cost, and where their error comes from, after LinearKV's Tables 1 and 4."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from holdover.report.quality.plots import panels, plot_of, whiskers, wrapped
from holdover.report.quality.results import Facts, ModelResults, Results, Rows
from holdover.report.quality.section import Section, grouped, interval, number, signed
from holdover.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from holdover.report.pictures import Picture

PROTOCOL = "composed"
_TEXT = (
    "A context of chunks that were each prefilled alone is put together, a share r of its tokens is run again, and a "
    "question is asked (LinearKV §4). Initial recurrent states meet on identical positions: `last` is the last "
    "chunk's own state, `random` another chunk's, `exact` composes the maps of all chunks, `zero` is none. `full` is "
    "an ordinary prefill, `all` runs every token of the chunks again, `none` runs none. An answer is right if greedy "
    "decoding gives it; KL is of its first token to the full prefill, NLL of the right answer, both in nats. "
    "Differences are to `last`, paired by question."
)
_DEPTH = (
    "Errors by layer are relative, at the end of the context. Exact composition is also made of the inputs that "
    "chunks see in their context (`true`): what is left of its error then is not due to its inputs."
)
# the paper's main budget
_MAIN = 0.2
# of a picture: between states at one share
_APART = 0.008
_METRICS = {"percent of full": "% of full", "right": "right", "kl": "KL", "nll": "NLL"}
_COLUMNS = ("task", "selector", "budget", "state", "run again", "metric", "mean", "95 % interval", "to last",
            "95 % interval", "n")  # fmt: skip
_CURVES = ("selector", "state", "part", "worst layer", "its error", "95 % interval", "rank correlation with depth",
           "95 % interval", "n")  # fmt: skip
_CAUSES = ("inputs", "layer", "left of the error", "95 % interval", "n")


def composed(results: Results) -> Section | None:
    """The section; None where the protocol was not run."""
    models = [model for model in results.models if model.of(PROTOCOL)]
    if not models:
        return None
    tables = [table for model in models for table in _tables(model)]
    pictures = (_budget_picture(models, "kl"), _budget_picture(models, "right"), _depth_picture(models))
    return Section("Contexts composed of chunks (LinearKV)", (_TEXT, _DEPTH), tuple(tables), pictures)


def main_ratio(rows: Rows) -> float:
    """The budget that tables are of: the paper's, or the nearest that was run."""
    ratios = {row["ratio"] for row in rows if swept(row)}
    return min(ratios, key=lambda ratio: abs(ratio - _MAIN), default=_MAIN)


def _tables(model: ModelResults) -> Iterator[Table]:
    for name, facts in model.of(PROTOCOL):
        rows, main = facts["rows"], main_ratio(facts["rows"])
        anchors = [row for row in rows if row["selector"] in ("full", "all", "none")]
        chosen = [row for row in rows if row["ratio"] == main]
        yield Table(f"{model.name}, {name}: at r = {main:g}", _COLUMNS, tuple(map(_cells, [*anchors, *chosen])))
        seams = [row for row in rows if row["window"] is not None]
        if seams:
            title = f"{model.name}, {name}: windows around seams, in tokens to each side"
            yield Table(title, _COLUMNS, tuple(map(_cells, seams)))
        yield Table(f"{model.name}, {name}: errors by layer", _CURVES, tuple(map(_curve, facts["curves"])))
        if facts["causes"]:
            title = f"{model.name}, {name}: what other inputs leave of exact composition's error"
            yield Table(title, _CAUSES, tuple(map(_cause, facts["causes"])))


def _cells(row: Facts) -> tuple[str, ...]:
    budget = f"r {row['ratio']:g}" if row["window"] is None else f"window {row['window']}"
    return (
        row["task"] or "all",
        row["selector"],
        budget,
        row["initialiser"] or "-",
        f"{row['recomputed']:.1%}",
        _METRICS[row["metric"]],
        number(row["mean"]),
        interval(row["low"], row["high"]),
        signed(row["difference"]),
        interval(row["difference_low"], row["difference_high"], signed),
        str(row["count"]),
    )


def _curve(curve: Facts) -> tuple[str, ...]:
    worst, rise = curve["layers"][str(curve["worst"])], curve["rise"]
    state = curve["initialiser"] + ("" if curve["inputs"] == "isolated" else f", {curve['inputs']} inputs")
    depth = ("-", "-") if rise is None else (number(rise["mean"]), interval(rise["low"], rise["high"]))
    error = (number(worst["mean"]), interval(worst["low"], worst["high"]))
    return (_selection(curve), state, curve["part"], str(curve["worst"]), *error, *depth, str(curve["count"]))


def _selection(curve: Facts) -> str:
    return curve["selector"] if not curve["ratio"] else f"{curve['selector']} r {curve['ratio']:g}"


def _cause(cause: Facts) -> tuple[str, ...]:
    left = cause["left"]
    ends = interval(left["low"], left["high"])
    return (cause["inputs"], str(cause["layer"]), number(left["mean"]), ends, str(cause["count"]))


def constructed(facts: Facts) -> list[Facts]:
    """Curves of states before anything is run again."""
    return [
        curve
        for curve in facts["curves"]
        if curve["part"] == "state" and curve["selector"] == "none" and curve["inputs"] == "isolated"
    ]


def swept(row: Facts) -> bool:
    """Whether a row is of a selector at a budget between none and all."""
    return row["ratio"] is not None and 0 < row["ratio"] < 1


def _budget_picture(models: Sequence[ModelResults], metric: str) -> Picture:
    def draw(axes: Axes, rows: Rows) -> None:
        for at, (state, same) in enumerate(grouped(rows, lambda row: str(row["initialiser"])).items()):
            ordered = sorted(same, key=lambda row: row["recomputed"])
            x = [row["recomputed"] + _APART * at for row in ordered]
            y = [row["mean"] for row in ordered]
            ends = whiskers(ordered, "mean", "low", "high")
            axes.errorbar(x, y, ends, marker="o", markersize=3, linewidth=0.8, label=state, color=f"C{at}")
        axes.set(xlabel="share run again", ylabel=_METRICS[metric])
        if metric == "kl":
            axes.set_yscale("log")

    found = [
        {
            f"{model.name}, {task or 'all'}: {selector}": same
            for (task, selector), same in grouped(
                (row for row in model.rows(PROTOCOL) if row["metric"] == metric and swept(row)),
                lambda row: (row["task"], row["selector"]),
            ).items()
        }
        for model in models
    ]
    figure = panels([row for row in found if row], draw, alike=True)
    caption = f"{_METRICS[metric]} by share run again, selector and initial state; states lie side by side"
    return plot_of(f"composed-{metric}", caption, figure)


def _depth_picture(models: Sequence[ModelResults]) -> Picture:
    def draw(axes: Axes, curves: Rows) -> None:
        for at, curve in enumerate(curves):
            points = [{"layer": int(layer), **estimate} for layer, estimate in curve["layers"].items()]
            _band(axes, points, lambda point: point["layer"], str(curve["initialiser"]), at)
        axes.set(xlabel="layer", ylabel="relative error", yscale="log")

    cells = {model.name: constructed(facts) for model in models for _, facts in model.of(PROTOCOL)}
    caption = "Relative error of constructed states by layer, before anything is run again"
    return plot_of("composed-depth", caption, panels(wrapped(cells), draw))


def _band(axes: Axes, points: Sequence[Facts], place: Callable[[Facts], float], label: str, at: int) -> None:
    """Means as a line, intervals as a band."""
    x = [place(point) for point in points]
    axes.plot(x, [point["mean"] for point in points], marker=".", linewidth=0.9, label=label, color=f"C{at}")
    low, high = ([point[end] for point in points] for end in ("low", "high"))
    axes.fill_between(x, low, high, alpha=0.15, color=f"C{at}")
