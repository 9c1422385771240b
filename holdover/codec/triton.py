"""Packing and unpacking on a GPU: a record's form that launches the kernels, tied to one pool."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
import triton
from torch import Tensor

from holdover.codec.kernels import pack_kernel, unpack_kernel
from holdover.codec.record import LayerRecord, Record
from holdover.ops.deferred.log import Log
from holdover.retention import Element
from holdover.state import SlotPool


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
    """Consecutive layers of one shape and kind of log, evenly spaced in memory: what one launch handles.

    Attributes:
        parts: the layers.
        state: temporal state of the first, a view ``[slots, H, d_k, d_v]``.
        history: conv state of the first, a view ``[slots, width - 1, channels]``; inputs of the log's tokens follow.
        log: log of the first, or None where states have none.
        spacing: elements from one layer's temporal and conv state to the next one's.
        source: canonical row ``(layer, head, key)`` of every row of the record, or -1 for padding; int32.
        place: row of the record of every canonical row, or -1 for an omitted one; int32.
    """

    parts: list[LayerRecord]
    state: Tensor
    history: Tensor
    log: Log | None
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
        self._length = None if pool.deferred is None else pool.deferred.cursor.length
        self._runs = [_run(record, pool, run) for run in _split(record, pool)]

    def pack(self, slots: Tensor, records: Tensor, targets: Tensor) -> None:
        """Write the records ``targets`` of uint8 ``[R, nbytes]`` from the slots. Mutates those records whole."""
        for run in self._runs:
            blocks = self._blocks(run)
            row_tiles = triton.cdiv(len(run.source), blocks["ROWS"])
            conv_tiles = run.conv_steps * triton.cdiv(blocks["CHANNELS"], blocks["CONV_BLOCK"])
            parts, strides = self._parts(run, records)
            ends = dict(zip(("TEMPORAL_END", "SCALES_END", "CONV_END"), self._record.ends, strict=True))
            pack_kernel[(row_tiles + conv_tiles + 1, len(slots))](
                run.state, run.history, records, *parts, run.source, slots, targets, self._length, *_log_tensors(run),
                len(run.source), row_tiles, conv_tiles, *_strides(run), self._record.nbytes, *strides,
                **_log_shape(run), **blocks, **ends,
            )  # fmt: skip

    def unpack(self, records: Tensor, sources: Tensor, slots: Tensor) -> None:
        """Write the slots from the records ``sources``; omitted units become zero. Mutates those slots whole."""
        for run in self._runs:
            blocks = self._blocks(run)
            row_tiles = triton.cdiv(len(run.place), blocks["ROWS"])
            conv_tiles = run.conv_steps * triton.cdiv(blocks["CHANNELS"], blocks["CONV_BLOCK"])
            parts, strides = self._parts(run, records)
            unpack_kernel[(row_tiles + conv_tiles, len(slots))](
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


def _log_tensors(run: _Run) -> tuple[Tensor | int | None, ...]:
    """The log of the run's first layer, and slots from one layer's log to the next one's."""
    log = run.log
    return (None,) * 4 + (0,) if log is None else (log.keys, log.values, log.decays, log.scales, len(log.keys))


def _log_shape(run: _Run) -> dict[str, int | bool]:
    if run.log is None:
        return {"KEY_HEADS": 0, "CAPACITY": 0, "PER_KEY": False}
    layout = run.log.layout
    return {"KEY_HEADS": layout.key_heads, "CAPACITY": layout.capacity, "PER_KEY": layout.family.per_key}


def _split(record: Record, pool: SlotPool) -> Iterator[list[LayerRecord]]:
    """Cut the layers into runs of one shape and kind of log, evenly spaced in memory."""
    run: list[LayerRecord] = []
    for part in record.layers:
        if run and not _continues([*run, part], pool):
            yield run
            run = []
        run.append(part)
    yield run


def _continues(run: list[LayerRecord], pool: SlotPool) -> bool:
    first, last = (_log(pool, part) for part in (run[0], run[-1]))
    # equal ones lie one behind the other
    if first is not None and last is not None and first.layout != last.layout:
        return False
    for view in (pool.temporal, pool.conv):
        tensors = [view(part.layer.index) for part in run]
        if tensors[-1].shape != tensors[0].shape or tensors[-1].stride() != tensors[0].stride():
            return False
        if len({b.data_ptr() - a.data_ptr() for a, b in pairwise(tensors)}) > 1:
            return False
    return True


def _log(pool: SlotPool, part: LayerRecord) -> Log | None:
    """A layer's log, if it can hold something."""
    deferred = pool.deferred
    return deferred.log(part.layer.index) if deferred is not None and deferred.capacity else None


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
        _log(pool, parts[0]),
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
