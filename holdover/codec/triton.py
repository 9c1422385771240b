"""Packing and unpacking on a GPU: one launch for a whole batch of slots, temporal and conv state together.

A tile is a few rows of ``d_v`` elements. Packing walks the record and gathers rows of the slot; unpacking walks the
slot and gathers rows of the record: both write consecutive bytes, and an omitted row costs a write of zeros. Which row
is where is one int32 a row, made once for the codec and the pool.

Bytes that only move are moved as integers. bfloat16 is rounded (half to even) and widened on its bits, which gives the
same bits on every device.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdover.codec.record import LayerRecord, Record
from holdover.retention import Element
from holdover.state import SlotPool


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
def _pack_kernel(
    state, history, packed, packed_state, packed_scales, packed_history, source, slots, targets,
    rows, row_tiles, conv_tiles,
    slot_stride, layer_stride, head_stride, key_stride, value_stride,
    history_slot_stride, history_layer_stride, step_stride, channel_stride,
    record_bytes, record_state, record_scales, record_history,
    ELEMENT: tl.constexpr, HEADS: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
    HISTORY: tl.constexpr, CHANNELS: tl.constexpr,
    TEMPORAL_END: tl.constexpr, SCALES_END: tl.constexpr, CONV_END: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, CONV_BLOCK: tl.constexpr,
):  # fmt: skip
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
        inputs = tl.load(history + slot * history_slot_stride + ours, mask=exists)
        tl.store(packed_history + target * record_history + theirs, inputs, mask=exists)
    else:
        _clear_gap(packed + target * record_bytes, TEMPORAL_END)
        _clear_gap(packed + target * record_bytes, SCALES_END)
        _clear_gap(packed + target * record_bytes, CONV_END)


@triton.jit
def _unpack_kernel(
    state, history, packed_state, packed_scales, packed_history, place, sources, slots,
    rows, row_tiles,
    slot_stride, layer_stride, head_stride, key_stride, value_stride,
    history_slot_stride, history_layer_stride, step_stride, channel_stride,
    record_state, record_scales, record_history,
    ELEMENT: tl.constexpr, HEADS: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
    HISTORY: tl.constexpr, CHANNELS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, CONV_BLOCK: tl.constexpr,
):  # fmt: skip
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


@dataclass(frozen=True)
class Tiling:
    """How work is cut into programs.

    Attributes:
        elements: elements of temporal state in a tile of whole rows.
        conv: elements of conv state in a tile.
        warps: warps of a program.
    """

    elements: int = 1024
    conv: int = 2048
    warps: int = 4


# the best of sweeps on one H200 (benchmarks/store.py --sweep)
_TILINGS: dict[Element, Tiling] = {"full": Tiling(), "bfloat16": Tiling(), "int8": Tiling(1024, 4096, 2)}


@dataclass(frozen=True, eq=False)
class _Run:
    """Consecutive layers of one shape whose states are evenly spaced in memory: what one launch handles.

    Attributes:
        parts: the layers.
        state: temporal state of the first, a view ``[slots, H, d_k, d_v]``.
        history: conv state of the first, a view ``[slots, width - 1, channels]``.
        spacing: elements from one layer's temporal and conv state to the next one's.
        source: canonical row ``(layer, head, key)`` of every row of the record, or -1 for padding; int32.
        place: row of the record of every canonical row, or -1 for an omitted one; int32.
    """

    parts: list[LayerRecord]
    state: Tensor
    history: Tensor
    spacing: tuple[int, int]
    source: Tensor
    place: Tensor

    @property
    def conv_steps(self) -> int:
        """Past inputs of all the layers."""
        return len(self.parts) * self.history.shape[1]


class TritonForm:
    """A record's form, tied to one pool: the kernels' counterpart of `TorchForm`.

    Its calls launch kernels and nothing else, so they can be captured in a CUDA graph; indices are tensors ``[n]`` of
    int32 or int64 on the pool's device.

    Args:
        record: the form.
        pool: the slots that are packed and unpacked, of the record's layout.
        tiling: how work is cut; None for what suits the record's element.
    """

    def __init__(self, record: Record, pool: SlotPool, tiling: Tiling | None = None) -> None:
        self._record = record
        self._tiling = tiling or _TILINGS[record.element]
        self._runs = [_run(record, pool, run) for run in _split(record, pool)]

    def pack(self, slots: Tensor, records: Tensor, targets: Tensor) -> None:
        """Write the records ``targets`` of uint8 ``[R, nbytes]`` from the slots. Mutates those records whole."""
        for run in self._runs:
            blocks = self._blocks(run)
            row_tiles = triton.cdiv(len(run.source), blocks["ROWS"])
            conv_tiles = run.conv_steps * triton.cdiv(blocks["CHANNELS"], blocks["CONV_BLOCK"])
            parts, strides = self._parts(run, records)
            ends = dict(zip(("TEMPORAL_END", "SCALES_END", "CONV_END"), self._record.ends, strict=True))
            _pack_kernel[(row_tiles + conv_tiles + 1, len(slots))](
                run.state, run.history, records, *parts, run.source, slots, targets,
                len(run.source), row_tiles, conv_tiles, *_strides(run), self._record.nbytes, *strides, **blocks, **ends,
            )  # fmt: skip

    def unpack(self, records: Tensor, sources: Tensor, slots: Tensor) -> None:
        """Write the slots from the records ``sources``; omitted units become zero. Mutates those slots whole."""
        for run in self._runs:
            blocks = self._blocks(run)
            row_tiles = triton.cdiv(len(run.place), blocks["ROWS"])
            conv_tiles = run.conv_steps * triton.cdiv(blocks["CHANNELS"], blocks["CONV_BLOCK"])
            parts, strides = self._parts(run, records)
            _unpack_kernel[(row_tiles + conv_tiles, len(slots))](
                run.state, run.history, *parts, run.place, sources, slots,
                len(run.place), row_tiles, *_strides(run), *strides, **blocks,
            )  # fmt: skip

    def _blocks(self, run: _Run) -> dict[str, int | str]:
        layer = run.parts[0].layer
        block = triton.next_power_of_2(layer.d_v)
        return {
            "ELEMENT": self._record.element,
            "HEADS": layer.heads,
            "D_K": layer.d_k,
            "D_V": layer.d_v,
            "HISTORY": max(1, layer.conv_width - 1),
            "CHANNELS": layer.conv_channels,
            "ROWS": max(1, self._tiling.elements // block),
            "BLOCK": block,
            "CONV_BLOCK": self._tiling.conv,
            "num_warps": self._tiling.warps,
        }

    def _parts(self, run: _Run, records: Tensor) -> tuple[list[Tensor], list[int]]:
        """The run's temporal, scale and conv sections of every record, and elements from one record to the next."""
        first, record = run.parts[0], self._record
        dtypes = (_moved(record.stored, record.element), _moved(record.temporal_dtype, record.element))
        starts = zip((first.temporal, first.scales, first.conv), (*dtypes, _bits(record.conv_dtype)), strict=True)
        parts = [records.view(dtype)[:, start // dtype.itemsize :] for start, dtype in starts]
        return parts, [x.stride(0) for x in parts]


def _split(record: Record, pool: SlotPool) -> Iterator[list[LayerRecord]]:
    """Cut the layers into runs of one shape, evenly spaced in memory."""
    run: list[LayerRecord] = []
    for part in record.layers:
        if run and not _continues([*run, part], pool):
            yield run
            run = []
        run.append(part)
    yield run


def _continues(run: list[LayerRecord], pool: SlotPool) -> bool:
    for view in (pool.temporal, pool.conv):
        tensors = [view(part.layer.index) for part in run]
        if tensors[-1].shape != tensors[0].shape or tensors[-1].stride() != tensors[0].stride():
            return False
        if len({b.data_ptr() - a.data_ptr() for a, b in pairwise(tensors)}) > 1:
            return False
    return True


def _run(record: Record, pool: SlotPool, parts: list[LayerRecord]) -> _Run:
    temporal = [pool.temporal(part.layer.index) for part in parts[:2]]
    conv = [pool.conv(part.layer.index) for part in parts[:2]]
    layer = parts[0].layer
    per_layer = layer.heads * layer.d_k
    source = torch.full((sum(x.reserved * x.unit_rows for x in parts),), -1, dtype=torch.int32)
    place = torch.full((len(parts) * per_layer,), -1, dtype=torch.int32)
    start = 0
    for i, part in enumerate(parts):
        rows = i * per_layer + _rows(part)
        source[start : start + len(rows)] = rows
        place[rows.long()] = torch.arange(start, start + len(rows), dtype=torch.int32)
        start += part.reserved * part.unit_rows
    return _Run(
        parts,
        temporal[0].view(_moved(record.temporal_dtype, record.element)),
        conv[0].view(_bits(record.conv_dtype)),
        (_spacing(temporal), _spacing(conv)),
        source.to(pool.device),
        place.to(pool.device),
    )


def _rows(part: LayerRecord) -> Tensor:
    """Canonical rows ``head * d_k + key`` of a layer's retained units, int32."""
    rows = part.kept[:, None] * part.unit_rows + torch.arange(part.unit_rows)
    return rows.flatten().to(torch.int32)


def _spacing(tensors: list[Tensor]) -> int:
    """Elements from the first tensor to the second."""
    return (tensors[-1].data_ptr() - tensors[0].data_ptr()) // tensors[0].element_size()


def _strides(run: _Run) -> tuple[int, ...]:
    slot, *rest = run.state.stride()
    history_slot, *history_rest = run.history.stride()
    return slot, run.spacing[0], *rest, history_slot, run.spacing[1], *history_rest


def _moved(dtype: torch.dtype, element: str) -> torch.dtype:
    """How the kernels see temporal numbers: as bits where they only move, else as numbers, bfloat16 by its bits."""
    return _bits(dtype) if element == "full" or dtype == torch.bfloat16 else dtype


def _bits(dtype: torch.dtype) -> torch.dtype:
    return {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
