"""Search for the block sizes of the deferred step, one cell at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace

from benchmarks import common
from benchmarks.common import Row
from benchmarks.decode_arms import SHAPES, Budget, Cell, Graph, deferred_arm, release
from holdover.ops.deferred import traffic
from holdover.ops.deferred.tiling import Tiling, choose

KNOBS = {
    "columns": (16, 32, 64, 128),
    "warps": (1, 2, 4),
    "entries": (2, 4, 8, 16),
    "fold_entries": (1, 2, 4, 8),
}


def tune(ops: Sequence[str], batches: Sequence[int], budget: Budget, replays: int = 10) -> list[Row]:
    """Change one block size at a time and keep what is faster; the dense step is tuned as carefully as the log."""
    rows = []
    for op in ops:
        for batch in batches:
            cell = Cell.make(SHAPES[op], batch)
            for interval in sorted({traffic.best_interval(cell.shape.layout(1)), 8, 1}):
                if not budget.spent:
                    rows += descend(cell, interval, budget, replays)
            del cell
            release()
    return rows


def descend(cell: Cell, interval: int, budget: Budget, replays: int) -> list[Row]:
    """Coordinate descent for one cell, from the tiling that is used now; no row if none ran at all."""
    best = start = choose(cell.shape.layout(interval), cell.batch)
    fastest = first = milliseconds_of(cell, interval, best, replays)
    for name, values in KNOBS.items():
        for value in values:
            if budget.spent or value == getattr(best, name) or not fits(cell, name, value):
                continue
            tried = replace(best, **{name: value})
            taken = milliseconds_of(cell, interval, tried, replays)
            # less than a percent is noise
            if taken < 0.99 * fastest:
                best, fastest = tried, taken
    common.console.print(
        f"{cell.shape.family.name} B={cell.batch} M={interval}: {first:.4f} -> {fastest:.4f} ms, {best}"
        + ("" if best != start else " (unchanged)")
    )
    if not math.isfinite(fastest):
        return []
    named = {"op": cell.shape.family.name, "batch": cell.batch, "method": "tuned", "merge_interval": interval}
    return [{**named, "ms": fastest, **asdict(best)}]


def fits(cell: Cell, name: str, value: int) -> bool:
    return name != "columns" or value <= cell.shape.d_v


def milliseconds_of(cell: Cell, interval: int, tiling: Tiling, replays: int) -> float:
    """Median milliseconds of a step; infinite where the GPU lacks the resources for such tiles."""
    try:
        graph = Graph(deferred_arm(cell, interval, tiling=tiling), cell.layers)
        return common.percentile(graph.times(2 * replays), 50)
    except Exception as reason:  # whatever the compiler or the driver says of such tiles, others are tried
        common.console.print(f"  {tiling}: {type(reason).__name__}")
        return float("inf")
    finally:
        release()
