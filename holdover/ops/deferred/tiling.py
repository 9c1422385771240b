"""How the kernels cut a state into tiles."""

from __future__ import annotations

from dataclasses import dataclass

from holdover.ops.deferred.log import LogLayout

# programs that keep a large GPU busy; with fewer, narrower tiles give more of them
BUSY = 2048
# numbers of a tile that the registers of one warp hold
OF_A_WARP = 4096
# the least that tensor cores sum over; shorter sums are padded
INNER = 16
# key channels that are in flight at once where rows meet the log's keys
COMBINED = 32


@dataclass(frozen=True)
class Tiling:
    """Block sizes of a step or a fold, whose tiles have all key channels; each is a power of two.

    Attributes:
        columns: value columns of a program; divides d_v.
        entries: log entries that are replayed at once.
        fold_entries: log entries whose loads share a wait when they are folded.
        warps: of a program. One needs no barrier.
    """

    columns: int
    entries: int
    fold_entries: int
    warps: int


@dataclass(frozen=True)
class DraftTiling:
    """Block sizes of a verification, which reads the base in blocks of key channels; all but ``stages`` powers of two.

    Attributes:
        channels: key channels of the base that are read at once, at least `INNER`.
        columns: value columns of a program; divides d_v.
        stages: blocks in flight.
        warps: of a program.
    """

    channels: int
    columns: int
    stages: int
    warps: int


def choose(layout: LogLayout, batch: int) -> Tiling:
    """Tiles of a step. What is chosen was the best, or within 3 % of it, of those tried on one H200.

    Up to a merge interval of 9, all entries are asked for before the base is. Where there is no log, wide tiles pay:
    they read keys less often, and no entries take their registers.
    """
    columns = _narrow(layout, 32) if layout.capacity else _wide(layout, batch)
    return Tiling(columns, _entries(layout, 8), fold_entries=1, warps=_warps(layout, columns))


def choose_fold(layout: LogLayout, batch: int) -> Tiling:
    """Tiles of a fold alone: nothing has read the log before, so its entries are asked for together."""
    columns, entries = _wide(layout, batch), _entries(layout, 8)
    return Tiling(columns, entries, fold_entries=entries, warps=_warps(layout, columns))


def choose_verify(layout: LogLayout, batch: int) -> DraftTiling:
    """Tiles for several tokens at once: with many programs others read while one waits, with few each reads ahead.

    Where decays are per key, a wide tile's rows take too many registers.
    """
    columns = _narrow(layout, 32) if layout.family.per_key else _wide(layout, batch)
    stages = 3 if batch * layout.heads * layout.d_v // columns >= BUSY else 5
    return DraftTiling(INNER, columns, stages, warps=1)


def _narrow(layout: LogLayout, most: int) -> int:
    return min(most, layout.d_v & -layout.d_v)


def _wide(layout: LogLayout, batch: int) -> int:
    columns = _narrow(layout, 64)
    return columns if batch * layout.heads * layout.d_v // columns >= BUSY else min(32, columns)


def _warps(layout: LogLayout, columns: int) -> int:
    return max(1, layout.d_k * columns // OF_A_WARP)


def _entries(layout: LogLayout, most: int) -> int:
    return min(most, 1 << max(0, layout.capacity - 1).bit_length())
