"""`GroupCursor.decode` in one launch: a step's builder runs it for every KV cache group, on the way of each token."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from holdover.ops.deferred.log import Cursor
from holdover.ops.jit import jit

BLOCK = 128


def decode(
    depth: Tensor, cursor: Cursor, counts: Tensor, slots: Tensor, positions: Tensor, interval: int, block_size: int
) -> None:
    """As `GroupCursor.decode`, on its tensors."""
    grid = (triton.cdiv(len(slots), BLOCK),)
    decode_kernel[grid](
        *(depth, *cursor, counts, slots, positions, len(slots)),
        **{"interval": interval, "block_size": block_size, "block": BLOCK, "num_warps": 1},
    )


@jit
def decode_kernel(
    depth: tl.tensor,
    length: tl.tensor,
    limit: tl.tensor,
    counts: tl.tensor,
    slots: tl.tensor,
    positions: tl.tensor,
    count: tl.tensor,
    interval: tl.constexpr,
    block_size: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Slots of real rows are distinct, so that no two programs have one in common."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    slot = tl.load(slots + at, mask=at < count, other=0)
    real = slot != 0
    position = tl.load(positions + at, mask=real, other=0)
    after = position + 1
    into = tl.minimum(position % interval, position % block_size)
    began = tl.minimum(tl.maximum(tl.load(depth + slot, mask=real, other=0), position - into), position)
    folds = (after % interval == 0) | (after % block_size == 0)
    tl.store(depth + slot, began, mask=real)
    tl.store(length + slot, position - began, mask=real)
    tl.store(limit + slot, tl.where(folds, position - began, interval), mask=real)
    tl.atomic_add(counts, tl.sum(real.to(tl.int64), axis=0))
    tl.atomic_add(counts + 1, tl.sum((real & folds).to(tl.int64), axis=0))
