"""What keeping less of a checkpoint costs, after DASC's Tables 1 to 3 and its Figure 4."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdover.report.quality.plots import panels, plot_of
from holdover.report.quality.results import Facts, ModelResults, Results, Rows
from holdover.report.quality.section import (
    Section,
    compared,
    grouped,
    interval,
    is_loss,
    number,
    signed,
    wilson,
)
from holdover.report.tables import Table, ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from holdover.report.pictures import Picture

PROTOCOL = "warm-replay"
_COLUMNS = (
    "task", "arm", "W_max", "smaller by", "mean", "95 % interval", "to dense", "95 % interval", "hit", "loaded", "n"
)  # fmt: skip
_TEXT = (
    "Every prompt is run once unscored, which leaves a checkpoint of all of it but its last token, and is then asked "
    "again from that checkpoint (DASC §5.2, App. C.2). `nr` leaves omitted units at zero, `wr` replays them over a "
    "suffix, `int8` stores what is kept in 8 bits, and `random` keeps as many units as `nr`, drawn by five fixed "
    "seeds. Instances are the unit of the bootstrap intervals; differences are paired. Text is scored by the mean "
    "negative log-likelihood in nats, of which less is better, tasks by the share of right answers."
)
_INTERVENTION = (
    "Table 1(a) of the paper: a fact is hidden in a plain text, the text is cached, a part of the cache is set to "
    "zero, and the fact is asked for. Table 1(b): rank correlations between static horizons and what the states do on "
    "text."
)
# the count-matched masks
_CONTROL = "random"
_PARTS = {
    "baseline": "nothing",
    "zero-full-kv": "keys and values",
    "zero-linear": "recurrent states",
    "zero-both": "both",
}


def checkpoints(results: Results) -> Section | None:
    """The section; None where the protocol was not run."""
    models = [model for model in results.models if model.of(PROTOCOL)]
    if not models:
        return None
    tables = [*_evidence(results), *(_table(model) for model in models)]
    findings = [line for model in results.models for line in _intervention_findings(model)]
    findings += [line for model in models for line in _findings(model)]
    return Section(
        "Checkpoints that keep less (DASC)",
        (_INTERVENTION, _TEXT),
        tuple(tables),
        (_capacity_picture(models),),
        tuple(findings),
    )


def arm_name(row: Facts) -> str:
    """An arm's key in a file's ``arms``: its kind, cutoff and seed."""
    kind, _, seed = row["arm"].partition("(")
    parts = [kind, *([] if row["w_max"] is None else [f"w{row['w_max']}"]), *([f"s{seed[:-1]}"] if seed else [])]
    return "-".join(parts)


def capacities(facts: Facts) -> dict[str, float]:
    """By how much an arm's checkpoint is smaller than a dense one."""
    arms = facts["arms"]
    return {name: arms["dense"]["bytes"] / arm["bytes"] for name, arm in arms.items()} if "dense" in arms else {}


def _table(model: ModelResults) -> Table:
    rows = [_cells(row, capacities(facts)) for _, facts in model.of(PROTOCOL) for row in facts["rows"]]
    return Table(f"{model.name}: arms on the same prompts", _COLUMNS, tuple(rows))


def _cells(row: Facts, smaller: dict[str, float]) -> tuple[str, ...]:
    return (
        row["task"] or row["metric"],
        row["arm"],
        "-" if row["w_max"] is None else str(row["w_max"]),
        ratio(smaller.get(arm_name(row))),
        number(row["mean"]),
        interval(row["low"], row["high"]),
        signed(row["difference"]),
        interval(row["difference_low"], row["difference_high"], signed),
        f"{row['hit']:.3f}",
        f"{row['loaded']:.1%}",
        str(row["count"]),
    )


def _evidence(results: Results) -> Iterator[Table]:
    seen = [(model.name, model.files["validate"]) for model in results.models if "validate" in model.files]
    needles = [(name, score) for name, facts in seen for score in facts["needle"]]
    if needles:
        rows = tuple((name, _PARTS[score["arm"]], *_share(score)) for name, score in needles)
        yield Table("What retrieval rests on", ("model", "set to zero", "right", "95 % interval", "n"), rows)
    pairs = [(name, what, found) for name, facts in seen for what, found in facts["spearman"].items() if found]
    if pairs:
        rows = tuple(
            (name, what, f"{at['median']:.3f}", interval(at["q1"], at["q3"]), str(at["count"]))
            for name, what, at in pairs
        )
        columns = ("model", "static horizons and", "median", "interquartile range", "prefix-layer pairs")
        yield Table("Rank correlations within layers", columns, rows)


def _share(score: Facts) -> tuple[str, str, str]:
    right, asked = _right(score)
    return number(right / asked), interval(*wilson(right, asked)), str(asked)


def _intervention_findings(model: ModelResults) -> Iterator[str]:
    scores = {score["arm"]: score for score in model.files.get("validate", {}).get("needle", [])}
    if not scores:
        return
    for arm in ("zero-linear", "zero-full-kv"):
        kept, left = _right(scores["baseline"]), _right(scores[arm])
        needed = wilson(*left)[1] < wilson(*kept)[0]
        yield (
            f"{model.name}: with {_PARTS[arm]} at zero {left[0]} of {left[1]} hidden facts are found "
            f"({interval(*wilson(*left))}), untouched {kept[0]} of {kept[1]} ({interval(*wilson(*kept))}): "
            + ("retrieval needs them." if needed else "no need of them is seen.")
        )


def _right(score: Facts) -> tuple[int, int]:
    """Right answers, and questions."""
    return sum(score["right"].values()), sum(score["asked"].values())


def _findings(model: ModelResults) -> Iterator[str]:
    for (task, metric), rows in grouped(model.rows(PROTOCOL), lambda row: (row["task"], row["metric"])).items():
        for row in rows:
            if row["difference"] is None or _kind(row) == _CONTROL:
                continue
            at = "" if row["w_max"] is None else f" at W_max {row['w_max']}"
            masks = [one for one in rows if _kind(one) == _CONTROL and one["w_max"] == row["w_max"]]
            against = _against(row, masks, metric) if row["arm"] == "nr" and masks else ""
            yield f"{model.name}, {task or metric}: {row['arm']}{at} against dense: {compared(row, metric)}{against}."


def _against(row: Facts, masks: Rows, metric: str) -> str:
    """Against the count-matched controls."""
    worse = sum(_worse(mask, row, metric) for mask in masks)
    differences = [mask["difference"] for mask in masks]
    return (
        f"; {worse} of {len(masks)} random masks of as many units are worse than it, and differ from dense by "
        f"{interval(min(differences), max(differences), signed)}"
    )


def _worse(mask: Facts, row: Facts, metric: str) -> bool:
    return bool(mask["mean"] > row["mean"] if is_loss(metric) else mask["mean"] < row["mean"])


def _capacity_picture(models: list[ModelResults]) -> Picture:
    rows = [row for model in models for row in model.rows(PROTOCOL)]
    kinds = list(dict.fromkeys(_kind(row) for row in rows if row["difference"] is not None))

    def draw(axes: Axes, facts: Facts, task: str) -> None:
        smaller = capacities(facts)
        for kind in kinds:
            rows = [row for row in facts["rows"] if row["task"] == task and _kind(row) == kind]
            rows = [row for row in rows if row["difference"] is not None]
            x, y = [smaller[arm_name(row)] for row in rows], [row["difference"] for row in rows]
            if kind == _CONTROL:
                # the masks' own intervals would hide the others'
                axes.plot(x, y, "x", color="0.6", markersize=4, label=kind, zorder=0)
            elif rows:
                down = [row["difference"] - row["difference_low"] for row in rows]
                up = [row["difference_high"] - row["difference"] for row in rows]
                color = f"C{kinds.index(kind)}"
                axes.errorbar(x, y, (down, up), fmt="o", markersize=3, linewidth=0.8, label=kind, color=color)
        axes.axhline(0, color="0.6", linewidth=0.8)
        axes.set(xlabel="checkpoint smaller by", ylabel="difference to dense")

    cells = {
        f"{model.name}: {task or facts['rows'][0]['metric']}": (facts, task)
        for model in models
        for _, facts in model.of(PROTOCOL)
        if "dense" in facts["arms"]
        for task in dict.fromkeys(row["task"] for row in facts["rows"])
    }
    figure = panels(cells, lambda axes, cell: draw(axes, *cell))
    return plot_of("capacity", "Capacity and quality: differences to dense, 95 % intervals over instances", figure)


def _kind(row: Facts) -> str:
    return str(row["arm"].partition("(")[0])
