"""Move the cursor that all layers share."""

from __future__ import annotations

import triton.language as tl

from holdover.ops.jit import jit


@jit
def advance_kernel(
    length: tl.tensor,
    limit: tl.tensor,
    slots: tl.tensor,
    count: tl.tensor,
    capacity: tl.constexpr,
    drafts: tl.constexpr,
    dense: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """`next_cursor` of real slots."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    slot = tl.load(slots + at, mask=at < count, other=0)
    real = slot != 0
    live = tl.load(length + slot, mask=real, other=0)
    bound = tl.load(limit + slot, mask=real, other=0)
    if drafts is None:
        folded = live >= bound
        moved = tl.where(folded, 0, live + 1)
    else:
        folded = live + drafts > capacity
        moved = tl.where(folded, drafts, live + drafts)
    tl.store(length + slot, moved, mask=real)
    if capacity > 0:
        if dense:
            bound = tl.where(folded, 0, bound)
        else:
            first = 1 + (slot % capacity).to(tl.int32)
            bound = tl.where(bound == 0, first, tl.where(folded, capacity, bound))
        tl.store(limit + slot, bound, mask=real)


@jit
def rollback_kernel(
    length: tl.tensor, slots: tl.tensor, counts: tl.tensor, count: tl.tensor, block: tl.constexpr
) -> None:
    """Shorten the logs of real slots by ``counts``."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    slot = tl.load(slots + at, mask=at < count, other=0)
    real = slot != 0
    live = tl.load(length + slot, mask=real, other=0)
    tl.store(length + slot, live - tl.load(counts + at, mask=real, other=0), mask=real)
