"""Fold logs into bases, and move the lengths that all layers share."""

from __future__ import annotations

import triton.language as tl

from holdover.ops.deferred.kernels.jit import jit
from holdover.ops.deferred.kernels.parts import fold_tile


@jit
def fold_kernel(
    base: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    decays: tl.tensor,
    scales: tl.tensor,
    length: tl.tensor,
    slots: tl.tensor,
    base_stride: tl.tensor,
    keys_stride: tl.tensor,
    values_stride: tl.tensor,
    decays_stride: tl.tensor,
    scales_stride: tl.tensor,
    room: tl.constexpr,
    heads: tl.constexpr,
    key_heads: tl.constexpr,
    d_k: tl.constexpr,
    d_v: tl.constexpr,
    capacity: tl.constexpr,
    per_key: tl.constexpr,
    floor: tl.constexpr,
    fold_rows: tl.constexpr,
    columns: tl.constexpr,
    entries: tl.constexpr,
    stages: tl.constexpr,
) -> None:
    """Fold the logs that hold something and have no ``room``; a program has one value tile of one head."""
    tiles: tl.constexpr = d_v // columns
    group: tl.constexpr = heads // key_heads
    width: tl.constexpr = d_k if per_key else 1
    program = tl.program_id(0)
    head = program // tiles % heads
    slot = tl.load(slots + program // (tiles * heads)).to(tl.int64)
    if slot == 0:
        return
    live = tl.load(length + slot)
    if live == 0 or live + room <= capacity:
        return
    if scales is not None:
        scales += slot * scales_stride + head * capacity
    column = program % tiles * columns + tl.arange(0, columns)
    fold_tile(
        base + slot * base_stride + head * (d_k * d_v),
        keys + slot * keys_stride + head // group * (capacity * d_k),
        values + slot * values_stride + head * (capacity * d_v),
        decays + slot * decays_stride + head * (capacity * width),
        scales, live, None, None, None, None, None, column,
        d_k, d_v, capacity, False, per_key, floor, fold_rows, entries, stages,
    )  # fmt: skip


@jit
def advance_kernel(
    length: tl.tensor,
    slots: tl.tensor,
    count: tl.tensor,
    capacity: tl.constexpr,
    added: tl.constexpr,
    restart: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Add ``added`` to the lengths of real slots; one that passes the capacity becomes ``restart``."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    slot = tl.load(slots + at, mask=at < count, other=0)
    real = slot != 0
    moved = tl.load(length + slot, mask=real, other=0) + added
    tl.store(length + slot, tl.where(moved > capacity, restart, moved), mask=real)
