"""How the kernels cut a state into tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdover.ops.deferred.log import LogLayout

# programs that keep a large GPU busy; with fewer, narrower tiles give more of them
BUSY = 2048
# programs from which on wider tiles pay: they read keys and decays less often
PLENTY = 8192


@dataclass(frozen=True)
class Tiling:
    """Block sizes of a launch; every one but ``warps`` and ``stages`` is a power of two.

    Attributes:
        rows: key channels of the base that are read at once.
        columns: value columns of a program; divides d_v.
        entries: log entries that are replayed at once.
        warps: of a program. One warp needs no barrier.
        stages: row blocks in flight.
        fold_rows: key channels that are folded at once.
    """

    rows: int
    columns: int
    entries: int
    warps: int
    stages: int
    fold_rows: int


def choose(layout: LogLayout, batch: int) -> Tiling:
    """Tiles for ``batch`` sequences: one warp; 32 columns, narrower ones for few heads in all, wider ones for many.

    Two row blocks of 64 by 32 are all of a 128-wide state: with three stages both are asked for at once. More entries
    or rows to a fold take so many registers that fewer programs fit; so do decays per key, which keep tiles narrow.
    What is chosen was the best, or within 3 % of it, of a sweep on one H200 (benchmarks/decode.py --tune).
    """
    widest = 32 if layout.family.per_key else 64
    columns = min(widest, layout.d_v & -layout.d_v)
    if columns == widest == 64 and batch * layout.heads * layout.d_v // columns < PLENTY:
        columns = 32
    while columns > 8 and batch * layout.heads * layout.d_v // columns < BUSY:
        columns //= 2
    entries = min(4, 1 << max(0, layout.capacity - 1).bit_length())
    fold_rows = 64 if not layout.capacity else 8 if layout.family.per_key else 16
    stages = 2 if layout.capacity and (columns == 64 or layout.family.per_key) else 3
    return Tiling(min(64, layout.d_k), columns, entries, warps=1, stages=stages, fold_rows=min(fold_rows, layout.d_k))


def choose_verify(layout: LogLayout, batch: int) -> Tiling:
    """Tiles for several tokens at once: their products take the registers of long row blocks, so more are in flight."""
    step = choose(layout, batch)
    return replace(step, rows=min(16, layout.d_k), stages=6)
