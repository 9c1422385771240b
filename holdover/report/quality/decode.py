"""How fast decode is with and without a log, from the benchmarks' files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from holdover.report.quality.plots import panels, plot_of, wrapped
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
OURS, DENSE, FLOOR = "holdover", "holdover-dense", "floor"
# the fastest row of every method, by operator and batch
Cells = Mapping[tuple[str, int], Mapping[str, Facts]]
# the batch that the paper's operator table is of
_BATCH = 128
# methods that every family has some of; tables have the others too
_DRAWN = (FLOOR, OURS, DENSE, "fla", "vllm", "sglang", "torch-compile")
_METHODS = ("op", "method", "merge interval", "ms", "p10 to p90", "to ours", "n")
_ENGINE = ("model", "context", "batch", "mode", "ms a token", "p10 to p90", "p99", "update's share", "n")
_BYTES = ("op", "method", "merge interval", "read", "written", "model read", "model written")


def decode(results: Results) -> Section | None:
    """The section; None where no benchmark of decode was run."""
    files = results.benchmarks
    timed, engine = timed_rows(results), engine_rows(results)
    counted = files.get("decode_counters", {}).get("rows", [])
    if not (timed or engine):
        return None
    tables = [*_operators(timed), *_engine(engine), *_counters(counted)]
    pictures = (_picture(timed),) if timed else ()
    machines = {name: _machine(files[name]) for name in ("decode", "decode_engine") if name in files}
    text = (_TEXT, *(f"`{name}.json`: {machine}." for name, machine in machines.items()))
    return Section("Decode speed (DeltaLog)", text, tuple(tables), pictures)


def timed_rows(results: Results) -> Rows:
    """One step of one layer, a row for every operator, batch and method."""
    return [row for row in results.benchmarks.get("decode", {}).get("rows", []) if _is_step(row)]


def engine_rows(results: Results) -> Rows:
    """One step of the whole engine, a row for every model, context, batch and mode."""
    rows: Rows = results.benchmarks.get("decode_engine", {}).get("rows", [])
    return rows


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


def cells_of(rows: Rows) -> Cells:
    """The fastest row of every method, by operator and batch, where ours was timed."""
    cells = {key: _best(same) for key, same in grouped(rows, lambda row: (row["op"], row["batch"])).items()}
    return {key: cells[key] for key in sorted(cells) if {OURS, DENSE} <= cells[key].keys()}


def _operators(rows: Rows) -> Iterator[Table]:
    lines = [
        (
            op,
            name,
            "-" if row["merge_interval"] is None else str(row["merge_interval"]),
            number(row["ms"]),
            f"{number(row['p10'])} to {number(row['p90'])}",
            ratio(row["ms"] / best[OURS]["ms"]),
            str(row["n"]),
        )
        for (op, batch), best in cells_of(rows).items()
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


def _picture(rows: Rows) -> Picture:
    cells = grouped(cells_of(rows).items(), lambda item: item[0][0])

    def draw(axes: Axes, found: Sequence[tuple[tuple[str, int], Mapping[str, Facts]]]) -> None:
        for at, name in enumerate(_DRAWN):
            points = sorted((batch, best[name]["ms"]) for (_, batch), best in found if name in best)
            if points:
                axes.plot(*zip(*points, strict=True), marker=".", linewidth=0.9, label=name, color=f"C{at}")
        axes.set(xscale="log", yscale="log", xlabel="sequences", ylabel="ms")

    return plot_of("decode", "One step of one recurrent layer by batch; medians", panels(wrapped(cells), draw))
