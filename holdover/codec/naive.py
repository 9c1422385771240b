"""The definition of a packed record, one row at a time: what the fast forms are compared with."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from holdover.arch.layout import RecurrentLayer
from holdover.codec.codec import Codec
from holdover.state import SlotPool


def pack(codec: Codec, pool: SlotPool, slot: int) -> Tensor:
    """A slot as one record: temporal rows, then scales, then conv, each filled up to 16 bytes; uint8 ``[nbytes]``."""
    rows, scales, conv = [], [], []
    pending = pool.pending(slot)
    for i, layer in enumerate(codec.layout.layers):
        state = _logical(pool, layer, slot) if pending else pool.temporal(layer.index)[slot]
        kept = [state[head, key] for head, key, retained in _rows(codec, i) if retained]
        spare = torch.zeros(layer.d_v, dtype=state.dtype)
        kept += [spare] * (_room(codec, i) - len(kept))
        for row in kept:
            stored, scale = _encode(codec, row)
            rows.append(stored)
            # a spare row has no scale either
            scales.append(torch.zeros_like(scale) if row is spare else scale)
        conv.append(pool.conv_rows(layer.index)[slot, pending : pending + layer.conv_width - 1])
    return torch.cat([_section(rows), _section(scales), _section(conv)])


def unpack(codec: Codec, record: Tensor, pool: SlotPool, slot: int) -> None:
    """Restore a slot from a record; omitted rows become zero."""
    state_dtype, conv_dtype = getattr(torch, codec.layout.temporal_dtype), getattr(torch, codec.layout.conv_dtype)
    stored = {"full": state_dtype, "bfloat16": torch.bfloat16, "int8": torch.int8}[codec.element]
    room = [_room(codec, i) for i in range(len(codec.layout.layers))]
    rows = _Reader(record, 0)
    scales = _Reader(record, sum(n * x.d_v for n, x in zip(room, codec.layout.layers, strict=True)) * stored.itemsize)
    conv = _Reader(record, scales.position + (sum(room) * state_dtype.itemsize if codec.element == "int8" else 0))
    for i, layer in enumerate(codec.layout.layers):
        state = pool.temporal(layer.index)[slot]
        state.zero_()
        places = [(head, key) for head, key, retained in _rows(codec, i) if retained]
        for head, key in places:
            row = rows.take(layer.d_v, stored)
            if codec.element == "int8":
                wide = torch.promote_types(state_dtype, torch.float32)
                row = row.to(wide) * scales.take(1, state_dtype).to(wide)
            state[head, key] = row.to(state_dtype)
        rows.take((room[i] - len(places)) * layer.d_v, stored)
        if codec.element == "int8":
            scales.take(room[i] - len(places), state_dtype)
        history = pool.conv(layer.index)[slot]
        history.copy_(conv.take(history.numel(), conv_dtype).view(history.shape))


def _logical(pool: SlotPool, layer: RecurrentLayer, slot: int) -> Tensor:
    """The state that a base and a log that holds something stand for, in float64 (DeltaLog, Eq. 7), rounded once."""
    assert pool.deferred is not None
    log, live = pool.deferred.log(layer.index), pool.pending(slot)
    state = pool.temporal(layer.index)[slot].double()
    for head in range(layer.heads):
        decays = log.decays[slot, head, :live].double().view(live, -1)
        state[head] *= decays[-1].exp()[:, None]
        for entry in range(live):
            key = log.keys[slot, head * layer.key_heads // layer.heads, entry].double()
            factor = (decays[-1] - decays[entry]).exp() * (1 if log.scales is None else log.scales[slot, head, entry])
            state[head] += (factor * key)[:, None] * log.values[slot, head, entry].double()
    return state.float()


class _Reader:
    """Reads values one after another from the first multiple of 16 bytes at or after ``start``."""

    def __init__(self, record: Tensor, start: int) -> None:
        self._record = record
        self.position = -(-start // 16) * 16

    def take(self, count: int, dtype: torch.dtype) -> Tensor:
        start, self.position = self.position, self.position + count * dtype.itemsize
        return self._record[start : self.position].clone().view(dtype)


def _rows(codec: Codec, i: int) -> Iterator[tuple[int, int, bool]]:
    """Head, key channel and whether it is retained, for every row of a layer."""
    layer = codec.layout.layers[i]
    for head in range(layer.heads):
        for key in range(layer.d_k):
            unit = head if layer.unit == "head" else head * layer.d_k + key
            yield head, key, codec.plan is None or bool(codec.plan.retained[i][unit])


def _room(codec: Codec, i: int) -> int:
    """Rows that a record reserves for a layer."""
    layer = codec.layout.layers[i]
    if codec.plan is None:
        return layer.units * _rows_per_unit(layer)
    units = max(codec.plan.counts) if codec.arrangement == "padded" else codec.plan.counts[i]
    return units * _rows_per_unit(layer)


def _rows_per_unit(layer: RecurrentLayer) -> int:
    return layer.d_k if layer.unit == "head" else 1


def _encode(codec: Codec, row: Tensor) -> tuple[Tensor, Tensor]:
    """A row as it is stored, and its scale ``[1]``, or ``[0]`` where it has none."""
    if codec.element == "full":
        return row, row.new_empty(0)
    wide = row.to(torch.float32)
    if codec.element == "bfloat16":
        return wide.to(torch.bfloat16), row.new_empty(0)
    # Eq. 8 in float32; a row that is not finite is marked by its scale
    sizes = [abs(value) for value in wide.tolist()]
    if not all(map(math.isfinite, sizes)):
        return torch.zeros_like(row, dtype=torch.int8), row.new_full((1,), torch.nan)
    scale = torch.tensor([max(*sizes, 1e-8)]) / torch.tensor(127.0)
    return torch.clip(torch.round(wide / scale), -127, 127).to(torch.int8), scale.to(row.dtype)


def _section(parts: list[Tensor]) -> Tensor:
    """Tensors one after another as bytes, filled up with zeros to a multiple of 16."""
    content = torch.cat(
        [torch.empty(0, dtype=torch.uint8), *(part.contiguous().flatten().view(torch.uint8) for part in parts)]
    )
    return torch.cat([content, content.new_zeros(-len(content) % 16)])
