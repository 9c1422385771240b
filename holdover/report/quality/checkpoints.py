"""What keeping less of a checkpoint costs, after DASC's Tables 1 to 3 and its Figure 4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean, stdev
from typing import TYPE_CHECKING

from holdover.report.quality.plots import panels, plot_of, whiskers
from holdover.report.quality.results import Facts, ModelResults, Results, Rows
from holdover.report.quality.section import (
    Section,
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
_MASKS = ("task", "W_max", "masks", "mean", "sample sd", "mean of nr", "worse than nr", "range to dense", "n")
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
CONTROL = "random"
# of a picture: what sets arms of one size beside each other, and the axis of differences of shares
_ASIDE, _SHARES = {"wr": 0.03, CONTROL: -0.03}, (-1.05, 0.35)
PARTS = {
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
    tables = [*_evidence(results), *(table for model in models for table in _tables(model))]
    text, pictures = (_INTERVENTION, _TEXT), (_capacity_picture(models),)
    return Section("Checkpoints that keep less (DASC)", text, tuple(tables), pictures)


def arm_name(row: Facts) -> str:
    """An arm's key in a file's ``arms``: its kind, cutoff and seed."""
    kind, _, seed = row["arm"].partition("(")
    parts = [kind, *([] if row["w_max"] is None else [f"w{row['w_max']}"]), *([f"s{seed[:-1]}"] if seed else [])]
    return "-".join(parts)


def capacities(facts: Facts) -> dict[str, float]:
    """By how much an arm's checkpoint is smaller than a dense one."""
    arms = facts["arms"]
    return {name: arms["dense"]["bytes"] / arm["bytes"] for name, arm in arms.items()} if "dense" in arms else {}


def kind(row: Facts) -> str:
    """An arm without the seed of its mask."""
    return str(row["arm"].partition("(")[0])


def masks(rows: Rows) -> dict[tuple[str, str, int], list[Facts]]:
    """Rows of the count-matched masks by task, metric and cutoff."""
    return grouped((row for row in rows if kind(row) == CONTROL), _cell)


def planned(rows: Rows) -> dict[tuple[str, str, int], Facts]:
    """Rows of what the plan keeps, likewise."""
    return {_cell(row): row for row in rows if row["arm"] == "nr"}


def right(score: Facts) -> tuple[int, int]:
    """Right answers, and questions, of an intervention."""
    return sum(score["right"].values()), sum(score["asked"].values())


def _cell(row: Facts) -> tuple[str, str, int]:
    return row["task"], row["metric"], row["w_max"]


def _tables(model: ModelResults) -> Iterator[Table]:
    pairs = [(row, capacities(facts)) for _, facts in model.of(PROTOCOL) for row in facts["rows"]]
    arms = [_cells(row, smaller) for row, smaller in pairs if kind(row) != CONTROL]
    yield Table(f"{model.name}: arms on the same prompts", _COLUMNS, tuple(arms))
    plan = planned(model.rows(PROTOCOL))
    drawn = [_drawn(same, plan.get(cell)) for cell, same in masks(model.rows(PROTOCOL)).items()]
    if drawn:
        yield Table(f"{model.name}: random masks of as many units", _MASKS, tuple(drawn))


def _drawn(rows: Sequence[Facts], plan: Facts | None) -> tuple[str, ...]:
    """All masks of a task and cutoff in one line; their differences to dense from the least to the greatest."""
    one, means, differences = rows[0], [row["mean"] for row in rows], [row["difference"] for row in rows]
    return (
        one["task"] or one["metric"],
        str(one["w_max"]),
        str(len(rows)),
        number(mean(means)),
        number(stdev(means)) if len(rows) > 1 else "-",
        "-" if plan is None else number(plan["mean"]),
        "-" if plan is None else str(sum(_worse(row, plan) for row in rows)),
        interval(min(differences), max(differences), signed),
        str(one["count"]),
    )


def _worse(row: Facts, other: Facts) -> bool:
    sign = 1 if is_loss(row["metric"]) else -1
    return bool(sign * (row["mean"] - other["mean"]) > 0)


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
        rows = tuple((name, PARTS[score["arm"]], *_share(score)) for name, score in needles)
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
    found, asked = right(score)
    return number(found / asked), interval(*wilson(found, asked)), str(asked)


def _capacity_picture(models: list[ModelResults]) -> Picture:
    rows = [row for model in models for row in model.rows(PROTOCOL)]
    kinds = list(dict.fromkeys(kind(row) for row in rows if row["difference"] is not None))

    def draw(axes: Axes, facts: Facts, task: str) -> None:
        shown = [row for row in facts["rows"] if row["task"] == task and row["difference"] is not None]
        for name, same in grouped(shown, kind).items():
            x = [capacities(facts)[arm_name(row)] + _ASIDE.get(name, 0.0) for row in same]
            y = [row["difference"] for row in same]
            if name == CONTROL:
                # the masks' own intervals would hide the others'
                axes.plot(x, y, "x", color="0.6", markersize=4, label=name, zorder=0)
                continue
            color, ends = f"C{kinds.index(name)}", whiskers(same, "difference", "difference_low", "difference_high")
            axes.errorbar(x, y, ends, fmt="o", markersize=3, linewidth=0.8, label=name, color=color)
        loss = is_loss(shown[0]["metric"])
        axes.axhline(0, color="0.6", linewidth=0.8)
        axes.set(xlabel="checkpoint smaller by", ylabel="nats more than dense" if loss else "right, less dense's")
        if not loss:
            axes.set_ylim(*_SHARES)

    found = [
        {
            f"{model.name}: {task or facts['rows'][0]['metric']}": (facts, task)
            for _, facts in model.of(PROTOCOL)
            if "dense" in facts["arms"]
            for task in dict.fromkeys(row["task"] for row in facts["rows"])
        }
        for model in models
    ]
    figure = panels([row for row in found if row], lambda axes, cell: draw(axes, *cell))
    caption = (
        "Capacity and quality: differences to dense, 95 % intervals over instances; of the arms of one size wr lies a "
        "little to the right, random to the left"
    )
    return plot_of("capacity", caption, figure)
