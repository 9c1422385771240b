"""Packing and unpacking with plain torch calls, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from holdover.codec.element import dequantise, quantise
from holdover.codec.record import LayerRecord, Record
from holdover.ops.deferred.torch import logical
from holdover.state import SlotPool


class TorchForm:
    """A record's form, tied to one pool. Indices are given as tensors ``[n]``.

    Args:
        record: the form.
        pool: the slots that are packed and unpacked, of the record's layout.
    """

    def __init__(self, record: Record, pool: SlotPool) -> None:
        self._record = record
        self._temporal = [pool.temporal(x.layer.index) for x in record.layers]
        self._inputs = [pool.conv_rows(x.layer.index) for x in record.layers]
        self._deferred = pool.deferred
        self._kept = [x.kept.to(pool.device) for x in record.layers]
        self._omitted = [x.omitted.to(pool.device) for x in record.layers]
        self._has_padding = record.footprint.padding > 0

    def pack(self, slots: Tensor, records: Tensor, targets: Tensor) -> None:
        """Write the records ``targets`` of uint8 ``[R, nbytes]`` from the slots. Mutates those records whole."""
        for slot, target in zip(slots.tolist(), targets.tolist(), strict=True):
            packed, pending = records[target], 0 if self._deferred is None else self._deferred.length(slot)
            if self._has_padding:
                packed.zero_()
            for i, part in enumerate(self._record.layers):
                state = self._logical_units(i, part, slot) if pending else self._units(i, part, slot)
                self._pack_temporal(i, part, state, packed)
                self._conv_of(part, packed).copy_(self._history(i, part, slot, pending))

    def unpack(self, records: Tensor, sources: Tensor, slots: Tensor) -> None:
        """Write the slots from the records ``sources``; omitted units become zero. Mutates those slots whole."""
        for source, slot in zip(sources.tolist(), slots.tolist(), strict=True):
            packed = records[source]
            for i, part in enumerate(self._record.layers):
                self._unpack_temporal(i, part, packed, slot)
                self._history(i, part, slot).copy_(self._conv_of(part, packed))

    def copy_omitted(self, source: int, target: int) -> None:
        """Copy the omitted units of one slot over those of another. Mutates nothing else."""
        for i, part in enumerate(self._record.layers):
            chosen = self._units(i, part, source).index_select(0, self._omitted[i])
            self._units(i, part, target).index_copy_(0, self._omitted[i], chosen)

    def _pack_temporal(self, i: int, part: LayerRecord, state: Tensor, packed: Tensor) -> None:
        room = self._room(part, packed)
        if self._record.element == "full":
            _select(state, self._kept[i], room)
        elif self._record.element == "bfloat16":
            room.copy_(state.index_select(0, self._kept[i]).float())
        else:
            rows = state.index_select(0, self._kept[i]).view(-1, part.layer.d_v)
            values, scales = quantise(rows)
            room.view(values.shape).copy_(values)
            self._scales_of(part, packed).copy_(scales)

    def _unpack_temporal(self, i: int, part: LayerRecord, packed: Tensor, slot: int) -> None:
        state, kept = self._units(i, part, slot), self._room(part, packed)
        if self._record.element == "int8":
            kept = dequantise(kept.view(-1, part.layer.d_v), self._scales_of(part, packed)).view(kept.shape)
        if len(kept) == len(state):
            state.copy_(kept)
        else:
            # faster than filling the omitted units alone
            state.zero_()
            state.index_copy_(0, self._kept[i], kept.to(state.dtype))

    def _units(self, i: int, part: LayerRecord, slot: int) -> Tensor:
        """A slot's base by unit, a view ``[units, elements of a unit]``."""
        return self._temporal[i][slot].view(part.layer.units, part.unit_rows * part.layer.d_v)

    def _logical_units(self, i: int, part: LayerRecord, slot: int) -> Tensor:
        """The temporal state that a slot's base and log stand for, by unit as in `_units`."""
        log = self._deferred
        assert log is not None
        state = logical(self._temporal[i], log.log(part.layer.index), log.cursor, log.index([slot]))
        return state.view(part.layer.units, part.unit_rows * part.layer.d_v)

    def _history(self, i: int, part: LayerRecord, slot: int, pending: int = 0) -> Tensor:
        """A slot's last conv inputs, those of its log's ``pending`` tokens the newest, a view ``[W - 1, channels]``."""
        return self._inputs[i][slot, pending : pending + part.layer.conv_width - 1]

    def _room(self, part: LayerRecord, packed: Tensor) -> Tensor:
        """Where a record holds a layer's retained units, a view ``[kept units, elements of a unit]``."""
        shape = (len(part.kept), part.unit_rows * part.layer.d_v)
        return _part(packed, part.temporal, shape, self._record.stored)

    def _scales_of(self, part: LayerRecord, packed: Tensor) -> Tensor:
        return _part(packed, part.scales, (len(part.kept) * part.unit_rows,), self._record.temporal_dtype)

    def _conv_of(self, part: LayerRecord, packed: Tensor) -> Tensor:
        shape = (part.layer.conv_width - 1, part.layer.conv_channels)
        return _part(packed, part.conv, shape, self._record.conv_dtype)


def _part(packed: Tensor, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A part of a record as a typed view."""
    # by bytes first: a view of a dtype needs a start that is a multiple of its size, and every part has one
    count = torch.Size(shape).numel() * dtype.itemsize
    return packed[start : start + count].view(dtype).view(shape)


def _select(state: Tensor, units: Tensor, out: Tensor) -> None:
    if len(units) == len(state):
        out.copy_(state)
    else:
        torch.index_select(state, 0, units, out=out)
