"""Fold logs into bases."""

from __future__ import annotations

import triton.language as tl

from holdover.ops.deferred.kernels.parts import cumulative, folded
from holdover.ops.jit import jit


@jit
def fold_kernel(
    base: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    decays: tl.tensor,
    scales: tl.tensor,
    length: tl.tensor,
    slots: tl.tensor,
    targets: tl.tensor,
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
    columns: tl.constexpr,
    entries: tl.constexpr,
) -> None:
    """Program ``(sequence, head, tile)``: fold a log that holds something and has no ``room`` into its own base.

    With ``targets``, every slot's logical state goes to its target's base instead, and its own stays as it is.
    """
    tiles: tl.constexpr = d_v // columns
    group: tl.constexpr = heads // key_heads
    width: tl.constexpr = d_k if per_key else 1
    program = tl.program_id(0)
    head = program // tiles % heads
    sequence = program // (tiles * heads)
    slot = tl.load(slots + sequence).to(tl.int64)
    if slot == 0:
        return
    live = tl.load(length + slot)
    target = slot
    idle = live == 0 or live + room <= capacity
    if targets is not None:
        target = tl.load(targets + sequence).to(tl.int64)
        idle = target == 0
    if idle:
        return
    keys += slot * keys_stride + head // group * (capacity * d_k)
    values += slot * values_stride + head * (capacity * d_v)
    decays += slot * decays_stride + head * (capacity * width)
    if scales is not None:
        scales += slot * scales_stride + head * capacity
    row = tl.arange(0, d_k)
    column = program % tiles * columns + tl.arange(0, columns)
    cells = head * (d_k * d_v) + row[:, None] * d_v + column[None, :]
    until = cumulative(decays, live, row if per_key else 0, width, capacity)
    tile = tl.load(base + slot * base_stride + cells).to(tl.float32)
    tile = folded(tile, keys, values, decays, scales, live, until, row, column, d_k, d_v, per_key, entries)
    tl.store(base + target * base_stride + cells, tile)
