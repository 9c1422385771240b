"""Which states of a pool a call advances, without copying them where that can be avoided."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

# elements of one slot from which on copying it out and back costs more than a call of its own
LARGE = 1 << 17


def in_place(pool: Tensor, slots: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Parts of a batch with their states, which the caller advances in place before asking for the next part.

    Slots that lie one after the other, and large ones, are views of the pool. Others are copied out together and
    copied back when the caller is done with them.

    Args:
        pool: ``[S, ...]``, contiguous within a slot.
        slots: ``[B]`` int64, distinct.

    Yields:
        A slice of the batch and its states, contiguous ``[b, ...]``.
    """
    indices: list[int] = slots.tolist()
    numel = pool[0].numel()
    runs = _runs(indices) if pool.stride(0) == numel else [slice(i, i + 1) for i in range(len(indices))]
    if len(runs) == 1 or numel >= LARGE:
        for run in runs:
            first = indices[run.start]
            yield run, pool[first : first + run.stop - run.start]
        return
    states = pool.index_select(0, slots)
    yield slice(0, len(indices)), states
    pool.index_copy_(0, slots, states)


def _runs(indices: list[int]) -> list[slice]:
    """Maximal slices of ``indices`` that count up by one."""
    edges = [i for i in range(1, len(indices)) if indices[i] != indices[i - 1] + 1]
    return [slice(*edge) for edge in zip([0, *edges], [*edges, len(indices)], strict=True)]
