"""What no paper measured: mechanisms together, and lossy restores one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from holdover.report.quality.plots import panels, plot_of, wrapped
from holdover.report.quality.results import Facts, ModelResults, Results, Rows
from holdover.report.quality.section import Section, grouped, interval, number, signed
from holdover.report.tables import Table, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from holdover.report.pictures import Picture

PROTOCOL = "combinations"
_TEXT = (
    "Conversations are held turn by turn with every way to keep checkpoints (with its cutoff), to decode (`dense` or "
    "from a log) and to draft (`off` or `ngram`). A turn's checkpoint is taken where it ends, from base and log, and "
    "the next turn resumes from it, so a conversation of many turns goes through many lossy restores. Replies are "
    "forced; KL is of every token to the exact run, in nats, over the turns that resumed. `once` is the control that "
    "resumes every turn from an exact past that was restored once. Chunk states are kept in full, in bf16, packed by "
    "the plan or as INT8, and compared with a full prefill. Conversations and contexts are the unit of the intervals."
)
_ROWS = ("combination", "mean KL", "95 % interval", "P95", "tokens agree", "to dense decode", "95 % interval",
         "checkpoint", "live state", "loads", "steps with a log", "drafts taken", "n")  # fmt: skip
_GROWTH = ("combination", "KL a restore", "95 % interval", "beyond one restore", "95 % interval", "restores", "n")
_CHUNKS = ("chunk states", "W_max", "initial state", "run again", "mean KL", "95 % interval", "to full states",
           "95 % interval", "bytes", "n")  # fmt: skip
_LEAST = 1e-12


def combinations(results: Results) -> Section | None:
    """The section; None where the protocol was not run."""
    models = [model for model in results.models if model.of(PROTOCOL)]
    if not models:
        return None
    tables = [table for model in models for table in _tables(model)]
    return Section("Combinations", (_TEXT,), tuple(tables), (_picture(models),))


def _tables(model: ModelResults) -> Iterator[Table]:
    for name, facts in model.of(PROTOCOL):
        where = f"{model.name}, {name}"
        yield Table(f"{where}: quality and bytes", _ROWS, tuple(map(_row, facts["rows"])))
        if facts["growth"]:
            yield Table(f"{where}: growth over restores", _GROWTH, tuple(map(_growth, facts["growth"])))
        if facts["chunks"]:
            yield Table(f"{where}: chunk states", _CHUNKS, tuple(map(_chunk, facts["chunks"])))


def _row(row: Facts) -> tuple[str, ...]:
    work = row["work"]
    drafts = "-" if row["speculate"] == "off" else f"{work['accepted']} of {work['drafted']}"
    return (
        row["arm"],
        number(row["mean"]),
        interval(row["low"], row["high"]),
        number(row["p95"]),
        f"{row['agreement']:.2%}",
        *_difference(row),
        size(row["checkpoint_bytes"]),
        size(row["slot_bytes"]),
        str(work["loads"]),
        str(work["logged"]),
        drafts,
        str(row["count"]),
    )


def _difference(row: Facts) -> tuple[str, str]:
    return signed(row["difference"]), interval(row["difference_low"], row["difference_high"], signed)


def _growth(row: Facts) -> tuple[str, ...]:
    more = (signed(row["excess"]), interval(row["excess_low"], row["excess_high"], signed))
    slope = (signed(row["slope"]), interval(row["low"], row["high"], signed))
    return (row["arm"], *slope, *more, str(row["restores"]), str(row["count"]))


def _chunk(row: Facts) -> tuple[str, ...]:
    return (
        row["state"],
        "-" if row["w_max"] is None else str(row["w_max"]),
        row["initialiser"],
        f"{row['selector']} {row['ratio']:.0%}",
        number(row["mean"]),
        interval(row["low"], row["high"]),
        *_difference(row),
        size(row["state_bytes"]),
        str(row["count"]),
    )


def _picture(models: Sequence[ModelResults]) -> Picture:
    def draw(axes: Axes, rows: Rows) -> None:
        for at, (arm, same) in enumerate(grouped(rows, lambda row: str(row["arm"])).items()):
            x = [row["restores"] for row in same]
            mean, low, high = ([max(row[end], _LEAST) for row in same] for end in ("mean", "low", "high"))
            axes.plot(x, mean, marker=".", linewidth=0.9, label=arm.partition("/")[0], color=f"C{at % 10}")
            axes.fill_between(x, low, high, alpha=0.1, color=f"C{at % 10}")
        axes.set(xlabel="restores", ylabel="mean KL in nats", yscale="log")

    # decode hardly changes what restores cost, so one way of it is enough to see
    cells = {
        f"{model.name}, {name}": [row for row in facts["turns"] if row["arm"].endswith("/deferred/off")]
        for model in models
        for name, facts in model.of(PROTOCOL)
    }
    caption = "KL to the exact run by restores in a row, decoding from a log"
    return plot_of("restores", caption, panels(wrapped(cells), draw))
