"""The kernels that pack and unpack: one launch for a whole batch of slots, temporal and conv state together.

A tile is a few rows of ``d_v`` elements. Packing walks the record and gathers rows of the slot; unpacking walks the
slot and gathers rows of the record: both write consecutive bytes, and an omitted row costs a write of zeros. Which row
is where is one int32 a row.

A slot may have a log (DeltaLog, §3). Packing then computes the rows that base and log stand for, at a length that it
reads from the cursor, so that one CUDA graph serves every fill.

Bytes that only move are moved as integers. bfloat16 is rounded (half to even) and widened on its bits, which gives the
same bits on every device.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
# ruff: noqa: N803 - compile-time arguments are written in capitals, as in Triton's own kernels
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _widen(x):
    """To float32, or to float64 if it is; bfloat16 comes as int16."""
    if x.dtype == tl.int16:
        wide = (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    elif x.dtype == tl.float64:
        wide = x
    else:
        wide = x.to(tl.float32)
    return wide


@triton.jit
def _narrow(x, dtype: tl.constexpr):
    """To ``dtype``, int16 standing for bfloat16."""
    if dtype == tl.int16:
        single = x.to(tl.float32)
        bits = single.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        # rounding would carry some NaN into another number
        narrow = tl.where(single == single, rounded, 0x7FC0).to(tl.uint16).to(tl.int16, bitcast=True)
    else:
        narrow = x.to(dtype)
    return narrow


@triton.jit
def _quantise(x):
    """INT8 and scale of every row (Eq. 8), and a scale of NaN for a row that is not finite."""
    size = tl.abs(x)
    # a maximum would pass over NaN
    largest = tl.max(tl.where(size < float("inf"), size, float("inf")), axis=1)
    finite = largest < float("inf")
    scale = tl.where(finite, tl.div_rn(tl.maximum(largest, 1e-8), 127.0), float("nan"))
    # adding 1.5 * 2^23 leaves no bits for a fraction: rounds half to even
    steps = x * tl.div_rn(1.0, scale)[:, None]
    rounded = (steps + 12582912.0) - 12582912.0
    # a product with the reciprocal is up to 2.3e-5 of a step off the quotient, which matters only beside a tie
    doubtful = tl.abs(tl.abs(steps - rounded) - 0.5) < 4e-5
    if tl.max(tl.max(doubtful.to(tl.int32), axis=1), axis=0) > 0:
        rounded = (tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape)) + 12582912.0) - 12582912.0
    rounded = tl.minimum(tl.maximum(rounded, -127.0), 127.0)
    return tl.where(finite[:, None], rounded, 0.0).to(tl.int8), scale


@triton.jit
def _row_offset(row, layer_stride, head_stride, key_stride, HEADS: tl.constexpr, D_K: tl.constexpr):
    """Where canonical rows ``(layer, head, key)`` of a slot begin."""
    head = row // D_K
    return (head // HEADS).to(tl.int64) * layer_stride + (head % HEADS) * head_stride + (row % D_K) * key_stride


@triton.jit
def _conv_offsets(
    piece,
    layer_stride,
    step_stride,
    channel_stride,
    HISTORY: tl.constexpr,
    CHANNELS: tl.constexpr,
    CONV_BLOCK: tl.constexpr,
):
    """Offsets in the slot and in the record of one piece of a past input, and which of its channels exist."""
    pieces: tl.constexpr = (CHANNELS + CONV_BLOCK - 1) // CONV_BLOCK
    step = piece // pieces
    channel = piece % pieces * CONV_BLOCK + tl.arange(0, CONV_BLOCK)
    ours = (step // HISTORY).to(tl.int64) * layer_stride + step % HISTORY * step_stride + channel * channel_stride
    return ours, step * CHANNELS + channel, channel < CHANNELS


@triton.jit
def _clear_gap(packed, END: tl.constexpr):
    """Zero what alignment leaves after a section."""
    at = tl.arange(0, 16)
    tl.store(packed + END + at, tl.zeros([16], tl.uint8), mask=at < (16 - END % 16) % 16)


@triton.jit
def _logical(
    x, origin, slot, live, keys, values, decays, factors, log_slots,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
    CAPACITY: tl.constexpr, PER_KEY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows of a base, fp32 or its bits, as rows of the state that it and ``live`` entries of its log stand for (Eq. 7).

    The logs of layers follow one another, ``log_slots`` slots each. Nothing is read for rows whose origin is -1, nor of
    entries that are not live.
    """
    width: tl.constexpr = D_K if PER_KEY else 1
    filled = origin >= 0
    row = tl.maximum(origin, 0)
    head = row // D_K % HEADS
    log = (row // (HEADS * D_K)).to(tl.int64) * log_slots + slot
    entries = (log * HEADS + head) * CAPACITY
    keys += (log * KEY_HEADS + head // (HEADS // KEY_HEADS)) * (CAPACITY * D_K) + row % D_K
    decays += entries * width + (row % D_K if PER_KEY else 0)
    col = tl.arange(0, BLOCK)
    cells = entries[:, None] * D_V + col[None, :]
    inside = filled[:, None] & (col < D_V)[None, :]
    total = tl.load(decays + (live - 1) * width, mask=filled, other=0.0)
    y = x.to(tl.float32, bitcast=True) * tl.exp(total)[:, None]
    entry = 0
    while entry < live:
        factor = tl.exp(total - tl.load(decays + entry * width, mask=filled, other=0.0))
        if factors is not None:
            factor *= tl.load(factors + entries + entry, mask=filled, other=0.0)
        factor *= tl.load(keys + entry * D_K, mask=filled, other=0.0).to(tl.float32)
        y += factor[:, None] * tl.load(values + cells + entry * D_V, mask=inside, other=0.0).to(tl.float32)
        entry += 1
    return y.to(x.dtype, bitcast=True)


@triton.jit
def pack_kernel(
    state, history, packed, packed_state, packed_scales, packed_history, source, slots, targets,
    length, log_keys, log_values, log_decays, log_factors, log_slots,
    rows, row_tiles, conv_tiles,
    slot_stride, layer_stride, head_stride, key_stride, value_stride,
    history_slot_stride, history_layer_stride, step_stride, channel_stride,
    record_bytes, record_state, record_scales, record_history,
    KEY_HEADS: tl.constexpr, CAPACITY: tl.constexpr, PER_KEY: tl.constexpr,
    ELEMENT: tl.constexpr, HEADS: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
    HISTORY: tl.constexpr, CHANNELS: tl.constexpr,
    TEMPORAL_END: tl.constexpr, SCALES_END: tl.constexpr, CONV_END: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, CONV_BLOCK: tl.constexpr,
):  # fmt: skip
    """Pack slots into records, the record's alignment and padding included. Programs: (tiles, batch).

    A ``CAPACITY`` of 0 means that there are no logs; else a slot's state is its base and ``length`` entries of its log.
    """
    tile = tl.program_id(0)
    slot = tl.load(slots + tl.program_id(1)).to(tl.int64)
    target = tl.load(targets + tl.program_id(1)).to(tl.int64)
    if tile < row_tiles:
        row = tile * ROWS + tl.arange(0, ROWS)
        col = tl.arange(0, BLOCK)
        inside = (row < rows)[:, None] & (col < D_V)[None, :]
        origin = tl.load(source + row, mask=row < rows, other=-1)
        filled = origin >= 0
        start = slot * slot_stride + _row_offset(
            tl.maximum(origin, 0), layer_stride, head_stride, key_stride, HEADS, D_K
        )
        x = tl.load(
            state + start[:, None] + col[None, :] * value_stride, mask=filled[:, None] & (col < D_V)[None, :], other=0
        )
        if CAPACITY > 0:
            live = tl.load(length + slot)
            # a settled state keeps its bits
            if live > 0:
                x = _logical(
                    x, origin, slot, live, log_keys, log_values, log_decays, log_factors, log_slots,
                    HEADS, KEY_HEADS, D_K, D_V, CAPACITY, PER_KEY, BLOCK,
                )  # fmt: skip
        out = packed_state + target * record_state + row[:, None] * D_V + col[None, :]
        if ELEMENT == "int8":
            values, scale = _quantise(_widen(x).to(tl.float32))
            tl.store(out, values, mask=inside)
            scale = _narrow(tl.where(filled, scale, 0.0), packed_scales.dtype.element_ty)
            tl.store(packed_scales + target * record_scales + row, scale, mask=row < rows)
        elif ELEMENT == "bfloat16":
            tl.store(out, _narrow(_widen(x), packed_state.dtype.element_ty), mask=inside)
        else:
            tl.store(out, x, mask=inside)
    elif tile < row_tiles + conv_tiles:
        ours, theirs, exists = _conv_offsets(
            tile - row_tiles, history_layer_stride, step_stride, channel_stride, HISTORY, CHANNELS, CONV_BLOCK
        )
        if CAPACITY > 0:
            # the log's tokens are the newest inputs
            ours += tl.load(length + slot) * step_stride
        inputs = tl.load(history + slot * history_slot_stride + ours, mask=exists)
        tl.store(packed_history + target * record_history + theirs, inputs, mask=exists)
    else:
        _clear_gap(packed + target * record_bytes, TEMPORAL_END)
        _clear_gap(packed + target * record_bytes, SCALES_END)
        _clear_gap(packed + target * record_bytes, CONV_END)


@triton.jit
def unpack_kernel(
    state, history, packed_state, packed_scales, packed_history, place, sources, slots,
    rows, row_tiles,
    slot_stride, layer_stride, head_stride, key_stride, value_stride,
    history_slot_stride, history_layer_stride, step_stride, channel_stride,
    record_state, record_scales, record_history,
    ELEMENT: tl.constexpr, HEADS: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
    HISTORY: tl.constexpr, CHANNELS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, CONV_BLOCK: tl.constexpr,
):  # fmt: skip
    """Unpack records into slots, zeros for what was omitted. Programs: (tiles, batch)."""
    tile = tl.program_id(0)
    slot = tl.load(slots + tl.program_id(1)).to(tl.int64)
    packed = tl.load(sources + tl.program_id(1)).to(tl.int64)
    if tile < row_tiles:
        row = tile * ROWS + tl.arange(0, ROWS)
        col = tl.arange(0, BLOCK)
        origin = tl.load(place + row, mask=row < rows, other=-1)
        kept = origin >= 0
        x = tl.load(
            packed_state + packed * record_state + origin[:, None] * D_V + col[None, :],
            mask=kept[:, None] & (col < D_V)[None, :],
            other=0,
        )
        if ELEMENT == "int8":
            scale = tl.load(packed_scales + packed * record_scales + origin, mask=kept, other=0)
            scale = _widen(scale)
            x = _narrow(x.to(scale.dtype) * scale[:, None], state.dtype.element_ty)
        elif ELEMENT == "bfloat16":
            x = _narrow(_widen(x), state.dtype.element_ty)
        start = slot * slot_stride + _row_offset(row, layer_stride, head_stride, key_stride, HEADS, D_K)
        inside = (row < rows)[:, None] & (col < D_V)[None, :]
        tl.store(state + start[:, None] + col[None, :] * value_stride, x, mask=inside)
    else:
        ours, theirs, exists = _conv_offsets(
            tile - row_tiles, history_layer_stride, step_stride, channel_stride, HISTORY, CHANNELS, CONV_BLOCK
        )
        inputs = tl.load(packed_history + packed * record_history + theirs, mask=exists)
        tl.store(history + slot * history_slot_stride + ours, inputs, mask=exists)
