"""Where everything lies in a packed record: ``[temporal | scales | conv]``, each section aligned to 16 bytes.

The offsets follow from the layout, the plan, the arrangement and the element alone, so a record means the same in a
pool, in host memory and in a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from holdover.arch.layout import DTYPE_BYTES, RecurrentLayer, StateLayout
from holdover.codec.element import stored_dtype
from holdover.errors import PlanError
from holdover.retention import Element, RetentionPlan

Arrangement = Literal["ragged", "padded"]

# a vector access of a GPU
ALIGNMENT = 16


@dataclass(frozen=True)
class Footprint:
    """Bytes of one record; their sum is the record.

    Attributes:
        temporal: elements of retained units.
        scales: scales of retained rows (INT8 only).
        conv: conv states of all layers.
        padding: units that `padded` reserves and does not fill, and what alignment adds.
    """

    temporal: int
    scales: int
    conv: int
    padding: int


@dataclass(frozen=True, eq=False)
class LayerRecord:
    """One layer's part of a record.

    Attributes:
        layer: the layer.
        kept: its retained units, int64, ascending.
        omitted: its other units, int64, ascending.
        reserved: units that the record has room for; the retained ones come first.
        temporal: byte at which its units begin.
        scales: byte at which its scales begin, one per row of ``d_v``.
        conv: byte at which its conv state begins.
    """

    layer: RecurrentLayer
    kept: Tensor
    omitted: Tensor
    reserved: int
    temporal: int
    scales: int
    conv: int

    @property
    def unit_rows(self) -> int:
        """Rows of ``d_v`` elements in a unit."""
        return _unit_rows(self.layer)


@dataclass(frozen=True, eq=False)
class Record:
    """The form of one packed record.

    Attributes:
        layout: the state.
        element: how an element is stored.
        layers: every recurrent layer's part, in stack order (DASC App. B: offsets ``o_l``).
        ends: bytes at which the content of the three sections ends; the next begins at a multiple of 16.
    """

    layout: StateLayout
    element: Element
    layers: tuple[LayerRecord, ...]
    ends: tuple[int, int, int]

    @classmethod
    def of(cls, layout: StateLayout, plan: RetentionPlan | None, arrangement: Arrangement, element: Element) -> Record:
        """Lay out a record; without a plan every unit is kept and nothing is padded.

        Raises:
            PlanError: a record would hold nothing at all.
        """
        masks = [torch.ones(x.units, dtype=torch.bool) for x in layout.layers] if plan is None else plan.retained
        counts = [int(mask.sum()) for mask in masks]
        # Scheme 1 gives every layer the room of the widest, Scheme 2 its own
        reserved = [max(counts)] * len(counts) if plan is not None and arrangement == "padded" else counts
        rows = [n * _unit_rows(x) for n, x in zip(reserved, layout.layers, strict=True)]
        width = stored_dtype(element, _dtype(layout.temporal_dtype)).itemsize
        scale = DTYPE_BYTES[layout.temporal_dtype] if element == "int8" else 0
        temporal = _offsets(0, [n * x.d_v * width for n, x in zip(rows, layout.layers, strict=True)])
        scales = _offsets(temporal[-1], [n * scale for n in rows])
        conv = _offsets(scales[-1], [x.conv_numel * DTYPE_BYTES[layout.conv_dtype] for x in layout.layers])
        if not conv[-1]:
            raise PlanError("the plan retains no unit and the model has no conv state: there is nothing to store")
        layers = tuple(
            LayerRecord(layer, mask.nonzero()[:, 0], (~mask).nonzero()[:, 0], *rest)
            for layer, mask, *rest in zip(
                layout.layers, masks, reserved, temporal[:-1], scales[:-1], conv[:-1], strict=True
            )
        )
        return cls(layout, element, layers, (temporal[-1], scales[-1], conv[-1]))

    @property
    def nbytes(self) -> int:
        """Bytes of one record."""
        return align(self.ends[-1])

    @property
    def temporal_dtype(self) -> torch.dtype:
        """Dtype of the state, and of the scales."""
        return _dtype(self.layout.temporal_dtype)

    @property
    def conv_dtype(self) -> torch.dtype:
        """Dtype of the conv state."""
        return _dtype(self.layout.conv_dtype)

    @property
    def stored(self) -> torch.dtype:
        """Dtype of a stored element."""
        return stored_dtype(self.element, self.temporal_dtype)

    @cached_property
    def footprint(self) -> Footprint:
        """What the bytes are for."""
        rows = [len(x.kept) * x.unit_rows for x in self.layers]
        temporal = sum(n * x.layer.d_v for n, x in zip(rows, self.layers, strict=True)) * self.stored.itemsize
        scales = sum(rows) * self.temporal_dtype.itemsize if self.element == "int8" else 0
        conv = self.layout.conv_bytes
        return Footprint(temporal, scales, conv, self.nbytes - temporal - scales - conv)


def align(nbytes: int) -> int:
    """The next multiple of 16 bytes."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _offsets(end: int, sizes: list[int]) -> list[int]:
    """Where each part of a section begins that follows ``end``, and where the last one ends."""
    return list(accumulate(sizes, initial=align(end)))


def _unit_rows(layer: RecurrentLayer) -> int:
    return layer.d_k if layer.unit == "head" else 1


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype
