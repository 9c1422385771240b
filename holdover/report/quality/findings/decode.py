"""How much a log saves, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from holdover.report.quality.decode import DENSE, FLOOR, OURS, Cells, cells_of, engine_rows, timed_rows
from holdover.report.quality.findings.part import Part, listed
from holdover.report.quality.results import Facts, Results, Rows
from holdover.report.quality.section import grouped


def decode(results: Results) -> Part:
    """A sentence for every operator, and for every model and context of the engine."""
    cells, engine = cells_of(timed_rows(results)), engine_rows(results)
    short = (*_short_operators(cells), *_short_engine(engine))
    return Part("Decode speed (DeltaLog)", (*_operators(cells), *_engine(engine)), short)


def _gain(best: Mapping[str, Facts]) -> float:
    return float(best[DENSE]["ms"] / best[OURS]["ms"])


def _spread(best: Mapping[str, Facts]) -> str:
    """The gain, from the one time's 10th percentile over the other's 90th to the reverse."""
    dense, ours = best[DENSE], best[OURS]
    ends = f"{dense['p10'] / ours['p90']:.2f} to {dense['p90'] / ours['p10']:.2f}"
    return f"{_gain(best):.2f} ({ends}, n = {min(dense['n'], ours['n'])})"


def _operators(cells: Cells) -> Iterator[str]:
    for op, found in grouped(cells.items(), lambda item: item[0][0]).items():
        (_, batch), most = max(found, key=lambda item: _gain(item[1]))
        least = min(_gain(best) for _, best in found)
        behind = [str(batch) for (_, batch), best in found if _fastest_other(best) < best[OURS]["ms"]]
        others = f"another kernel is faster at {', '.join(behind)}" if behind else "no other kernel is faster"
        batches = [batch for (_, batch), _ in found]
        yield (
            f"{op}: writing to a log is {least:.2f} to {_spread(most)} times as fast as writing the state at "
            f"{min(batches)} to {max(batches)} sequences, most at {batch}; {others}."
        )


def _fastest_other(best: Mapping[str, Facts]) -> float:
    times = (row["ms"] for name, row in best.items() if not name.startswith(OURS) and name != FLOOR)
    return min(times, default=math.inf)


def _pairs(rows: Rows) -> list[tuple[Facts, Facts]]:
    """Steps of the engine without and with a log, of one model, context and batch."""
    modes = {(row["model"], row["context"], row["batch"], row["mode"]): row for row in rows}
    return [
        (row, modes[*key, "deferred"])
        for (*key, mode), row in modes.items()
        if mode == "dense" and (*key, "deferred") in modes
    ]


def _overlap(dense: Facts, logged: Facts) -> str:
    return "" if logged["p90"] < dense["p10"] or dense["p90"] < logged["p10"] else " (spreads overlap)"


def _share(dense: Facts, logged: Facts) -> float:
    return float(logged["tpot_ms"] / dense["tpot_ms"])


def _engine(rows: Rows) -> Iterator[str]:
    for (model, context), same in grouped(_pairs(rows), lambda pair: (pair[0]["model"], pair[0]["context"])).items():
        parts = [f"{_share(*pair):.2f}{_overlap(*pair)} with {pair[0]['batch']}" for pair in same]
        count = min(row["n"] for pair in same for row in pair)
        yield (
            f"{model}, context {context:,}: of the time without a log a step takes {listed(parts)} sequences "
            f"(n = {count})."
        )


def _short_operators(cells: Cells) -> Iterator[str]:
    if cells:
        (op, batch), most = max(cells.items(), key=lambda item: _gain(item[1]))
        behind = sum(_fastest_other(best) < best[OURS]["ms"] for best in cells.values())
        others = f"another kernel is faster in {behind} of them" if behind else "no other kernel is faster in any"
        yield (
            f"Writing to a log makes one step of a recurrent layer {min(map(_gain, cells.values())):.2f} to "
            f"{_spread(most)} times as fast in {len(cells)} pairs of operator and batch, most for {op} at {batch} "
            f"sequences; {others}."
        )


def _short_engine(rows: Rows) -> Iterator[str]:
    pairs = _pairs(rows)
    if pairs:
        shares = [_share(*pair) for pair in pairs]
        faster = sum(logged["p90"] < dense["p10"] for dense, logged in pairs)
        slower = sum(dense["p90"] < logged["p10"] for dense, logged in pairs)
        yield (
            f"With a log a step of the whole engine ({listed(dense['model'] for dense, _ in pairs)}) takes "
            f"{min(shares):.2f} to {max(shares):.2f} of the time without: 10th to 90th percentiles lie apart in "
            f"{faster} of {len(pairs)} settings in its favour and in {slower} against it."
        )
