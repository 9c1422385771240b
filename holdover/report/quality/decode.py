"""How fast decode is with and without a log, from the benchmarks' files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from holdover.report.quality.plots import panels, plot_of
from holdover.report.quality.results import Facts, Results, Rows
from holdover.report.quality.section import Section, grouped, number
from holdover.report.tables import Table, ratio, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from holdover.report.pictures import Picture

_TEXT = (
    "`benchmarks/` measures these; its README says how. Times are medians in milliseconds, with the 10th and 90th "
    "percentile. One row is one step of one recurrent layer; of the methods that keep a log, the merge interval that "
    "was fastest. Errors are relative, to the float64 definition."
)
_OURS, _DENSE, _FLOOR = "holdover", "holdover-dense", "floor"
# the batch that the paper's operator table is of
_BATCH = 128
# methods that every family has some of; tables have the others too
_DRAWN = (_FLOOR, _OURS, _DENSE, "fla", "vllm", "sglang", "torch-compile")
_METHODS = ("op", "method", "merge interval", "ms", "p10 to p90", "to ours", "n")
_ENGINE = ("model", "context", "batch", "mode", "ms a token", "p10 to p90", "p99", "update's share", "n")
_BYTES = ("op", "method", "merge interval", "read", "written", "model read", "model written")


def decode(results: Results) -> Section | None:
    """The section; None where no benchmark of decode was run."""
    files = results.benchmarks
    timed = [row for row in files.get("decode", {}).get("rows", []) if _is_step(row)]
    engine = files.get("decode_engine", {}).get("rows", [])
    counted = files.get("decode_counters", {}).get("rows", [])
    if not (timed or engine):
        return None
    tables = [*_operators(timed), *_engine(engine), *_counters(counted)]
    pictures = (_picture(timed),) if timed else ()
    machines = {name: _machine(files[name]) for name in ("decode", "decode_engine") if name in files}
    text = (_TEXT, *(f"`{name}.json`: {machine}." for name, machine in machines.items()))
    findings = [*_operator_findings(timed), *_engine_findings(engine)]
    return Section("Decode speed (DeltaLog)", text, tuple(tables), pictures, tuple(findings))


def _is_step(row: Facts) -> bool:
    """One token of every sequence, at whatever mix of fills decode meets."""
    return "batch" in row and "ms" in row and row.get("fill") is None and "drafts" not in row


def _machine(facts: Facts) -> str:
    machine = facts["machine"]
    return (
        f"{', '.join(machine.get('gpus', [])) or machine['cpu']}, {facts['date'][:10]}, commit {facts['commit'][:10]}"
    )


def _best(rows: Rows) -> dict[str, Facts]:
    """The fastest row of every method."""
    return {name: min(same, key=lambda row: row["ms"]) for name, same in grouped(rows, _method).items()}


def _method(row: Facts) -> str:
    return str(row["method"])


def _cells(rows: Rows) -> dict[tuple[str, int], dict[str, Facts]]:
    """The fastest row of every method, by operator and batch, where ours was timed."""
    cells = {key: _best(same) for key, same in grouped(rows, lambda row: (row["op"], row["batch"])).items()}
    return {key: cells[key] for key in sorted(cells) if {_OURS, _DENSE} <= cells[key].keys()}


def _operators(rows: Rows) -> Iterator[Table]:
    lines = [
        (
            op,
            name,
            "-" if row["merge_interval"] is None else str(row["merge_interval"]),
            number(row["ms"]),
            f"{number(row['p10'])} to {number(row['p90'])}",
            ratio(row["ms"] / best[_OURS]["ms"]),
            str(row["n"]),
        )
        for (op, batch), best in _cells(rows).items()
        if batch == _BATCH
        for name, row in best.items()
    ]
    if lines:
        yield Table(f"One step of one layer, {_BATCH} sequences", _METHODS, tuple(lines))


def _engine(rows: Rows) -> Iterator[Table]:
    if rows:
        lines = [
            (
                row["model"],
                f"{row['context']:,}",
                str(row["batch"]),
                row["mode"],
                number(row["tpot_ms"]),
                f"{number(row['p10'])} to {number(row['p90'])}",
                number(row["tpot_p99_ms"]),
                f"{row['update_share']:.1%}",
                str(row["n"]),
            )
            for row in rows
        ]
        yield Table("One step of the whole engine", _ENGINE, tuple(lines))


def _counters(rows: Rows) -> Iterator[Table]:
    # a row with neither is a whole cycle
    lines = [
        (
            row["op"],
            row["method"],
            "-" if row["merge_interval"] is None else str(row["merge_interval"]),
            *(size(round(row[name])) for name in ("dram_read", "dram_write", "model_read", "model_written")),
        )
        for row in rows
        if row["fill"] is None
    ]
    if lines:
        yield Table("Bytes of one step at DRAM, by the GPU's counters and by our model of them", _BYTES, tuple(lines))


def _operator_findings(rows: Rows) -> Iterator[str]:
    for op, cells in grouped(_cells(rows).items(), lambda item: item[0][0]).items():
        gains = [best[_DENSE]["ms"] / best[_OURS]["ms"] for _, best in cells]
        behind = [str(batch) for (_, batch), best in cells if _fastest_other(best) < best[_OURS]["ms"]]
        others = f"another kernel is faster at {', '.join(behind)}" if behind else "no other kernel is faster"
        batches = ", ".join(str(batch) for (_, batch), _ in cells)
        yield (
            f"{op}: writing to a log is {min(gains):.2f} to {max(gains):.2f} times as fast as writing the "
            f"state, at {batches} sequences; {others}."
        )


def _fastest_other(best: dict[str, Facts]) -> float:
    times = (row["ms"] for name, row in best.items() if not name.startswith(_OURS) and name != _FLOOR)
    return min(times, default=math.inf)


def _engine_findings(rows: Rows) -> Iterator[str]:
    for (model, context), same in grouped(rows, lambda row: (row["model"], row["context"])).items():
        modes = {(row["batch"], row["mode"]): row for row in same}
        parts = [_engine_pair(batch, modes) for batch in dict.fromkeys(row["batch"] for row in same)]
        if any(parts):
            yield f"{model}, context {context:,}: with a log a step takes {', '.join(filter(None, parts))}."


def _engine_pair(batch: int, modes: dict[tuple[int, str], Facts]) -> str:
    if not {(batch, "dense"), (batch, "deferred")} <= modes.keys():
        return ""
    dense, logged = modes[batch, "dense"], modes[batch, "deferred"]
    apart = logged["p90"] < dense["p10"] or dense["p90"] < logged["p10"]
    note = "" if apart else " (spreads overlap)"
    return f"{logged['tpot_ms'] / dense['tpot_ms']:.2f} of the time without at {batch} sequences{note}"


def _picture(rows: Rows) -> Picture:
    cells = grouped(_cells(rows).items(), lambda item: item[0][0])

    def draw(axes: Axes, found: Sequence[tuple[tuple[str, int], dict[str, Facts]]]) -> None:
        for at, name in enumerate(_DRAWN):
            points = sorted((batch, best[name]["ms"]) for (_, batch), best in found if name in best)
            if points:
                axes.plot(*zip(*points, strict=True), marker=".", linewidth=0.9, label=name, color=f"C{at}")
        axes.set(xscale="log", yscale="log", xlabel="sequences", ylabel="ms")

    return plot_of("decode", "One step of one recurrent layer by batch; medians", panels(cells, draw))
