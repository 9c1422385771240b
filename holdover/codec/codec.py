"""A codec: how a checkpoint's recurrent state is packed into one record of fixed size, and back (DASC §4.1, App. B)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from holdover.arch.layout import DTYPE_BYTES, StateLayout
from holdover.codec.meta import MetaForm
from holdover.codec.record import Arrangement, Footprint, Record
from holdover.codec.torch import TorchForm
from holdover.errors import CheckpointMismatchError, IntegrityError, PlanError
from holdover.ops.forms import has_triton
from holdover.retention import Element, RetentionPlan
from holdover.state import SINK, SlotPool

# of a row: its place in a record and its record's place in the state, and the two lists of units of a refresh
_TABLE_BYTES = 16


class Form(Protocol):
    """A codec's fast calls on one pool. Indices are int64 tensors ``[n]``; nothing is checked."""

    def pack(self, slots: Tensor, records: Tensor, targets: Tensor) -> None:
        """Write the records ``targets`` of uint8 ``[R, nbytes]`` from the slots, base and log. Mutates those whole."""

    def unpack(self, records: Tensor, sources: Tensor, slots: Tensor) -> None:
        """Write the slots from the records ``sources``; omitted units become zero. Mutates those slots whole."""


@dataclass(frozen=True, eq=False)
class Codec:
    """Which units of a state a record keeps, where, and in which dtype. Two are the same when their `digest` is.

    Attributes:
        layout: the state.
        plan: which units are kept; None keeps every unit.
        arrangement: ``ragged`` gives each layer the room of its own retained units (Scheme 2), ``padded`` that of the
            widest layer (Scheme 1). Without a plan there is nothing to arrange.
        element: ``full`` is the state's own dtype; ``int8`` is Eq. 8. A state that is not finite stays visible: as it
            is in ``full``, as infinities and NaN in ``bfloat16``, as rows of NaN in ``int8``.

    Raises:
        PlanError: the plan was made for another layout.
    """

    layout: StateLayout
    plan: RetentionPlan | None = None
    arrangement: Arrangement = "ragged"
    element: Element = "full"

    def __post_init__(self) -> None:
        if self.plan is not None and self.plan.layout != self.layout.shape_digest:
            raise PlanError("the plan was made for another layout of recurrent state: make one with holdover plan")

    @property
    def name(self) -> str:
        """``dense``, ``ragged`` or ``padded``, and the element unless it is ``full``: ``ragged+int8``."""
        arrangement = "dense" if self.plan is None else self.arrangement
        return arrangement if self.element == "full" else f"{arrangement}+{self.element}"

    @cached_property
    def digest(self) -> str:
        """Hex digest that differs whenever the meaning of a record's bytes does."""
        plan = "" if self.plan is None else self.plan.digest
        return hashlib.sha256(f"{self.layout.digest} {plan} {self.name}".encode()).hexdigest()[:16]

    @cached_property
    def record(self) -> Record:
        """Where everything lies in a record."""
        return Record.of(self.layout, self.plan, self.arrangement, self.element)

    @property
    def nbytes(self) -> int:
        """Bytes of one record, scales, conv and padding included."""
        return self.record.nbytes

    @property
    def omits(self) -> bool:
        """Whether some unit is left out."""
        return self.plan is not None and not self.plan.omits_nothing

    @property
    def omitted(self) -> float:
        """Fraction of the state's units that is left out."""
        return 0.0 if self.plan is None else 1 - self.plan.offsets[-1] / self.plan.units

    @property
    def is_lossless(self) -> bool:
        """Whether unpacking gives back every bit of the state."""
        return not self.omits and self.element == "full"

    @property
    def staging_bytes(self) -> int:
        """Bytes on the pool's device that packing, unpacking and a refresh take beside slots and records, on a GPU.

        Tables say where each row of a record and of a state lies, twice where a refresh runs; one layer's units are
        taken out and put back at a time.
        """
        rows = sum(layer.heads * layer.d_k for layer in self.layout.layers)
        widest = max(layer.temporal_numel for layer in self.layout.layers)
        return _TABLE_BYTES * rows + 2 * widest * DTYPE_BYTES[self.layout.temporal_dtype]

    def footprint(self) -> Footprint:
        """What the bytes of a record are for."""
        return self.record.footprint

    def pack(self, pool: SlotPool, slots: Sequence[int], records: Tensor, targets: Sequence[int]) -> None:
        """Pack ``slots[i]`` into ``records[targets[i]]``. Mutates those records, every byte of them.

        What is packed is the state that a slot's base and log stand for; the slot keeps its log as it is.

        Args:
            pool: where the slots are.
            slots: which of them.
            records: uint8 ``[R, nbytes]`` on the pool's device.
            targets: which records, each named once.

        Raises:
            CheckpointMismatchError: pool or records are of another layout or size.
            IntegrityError: an index is out of range or, among ``targets``, repeated.
        """
        self._check(pool, slots, records, targets, written=targets)
        self.form(pool).pack(_index(slots, pool), records, _index(targets, pool))

    def unpack(self, records: Tensor, sources: Sequence[int], pool: SlotPool, slots: Sequence[int]) -> None:
        """Restore ``slots[i]`` from ``records[sources[i]]``; omitted units become zero.

        Mutates those slots, every byte of them, and forgets what they were: whoever knows the record's header says
        what they are now.

        Args:
            records: uint8 ``[R, nbytes]`` on the pool's device.
            sources: which of them.
            pool: where the slots are.
            slots: which slots, each named once.

        Raises:
            CheckpointMismatchError: pool or records are of another layout or size.
            IntegrityError: an index is out of range or, among ``slots``, repeated.
        """
        self._check(pool, slots, records, sources, written=slots)
        for slot in slots:
            pool.forget(slot)
        self.form(pool).unpack(records, _index(sources, pool), _index(slots, pool))

    def copy_omitted(self, pool: SlotPool, source: int, target: int) -> None:
        """Copy the units that this codec omits from one slot to another (suffix refresh, §4.2).

        Mutates those units of ``target``'s temporal state only.

        Raises:
            CheckpointMismatchError: the pool is of another layout, or one of the slots has tokens in its log.
            IntegrityError: a slot is out of range.
        """
        self._check_pool(pool, (source, target))
        if pending := [slot for slot in (source, target) if pool.pending(slot)]:
            raise CheckpointMismatchError(f"slots {pending} have tokens in their logs: settle them before a refresh")
        TorchForm(self.record, pool).copy_omitted(source, target)

    def form(self, pool: SlotPool) -> Form:
        """What packs and unpacks this pool; it takes indices as tensors on the pool's device and checks nothing.

        Where Triton runs, its calls can be captured in a CUDA graph. Made once for every pool.
        """
        found = self._forms.get(pool)
        if found is None:
            found = self._forms[pool] = _form(self.record, pool)
        return found

    @cached_property
    def _forms(self) -> WeakKeyDictionary[SlotPool, Form]:
        return WeakKeyDictionary()

    def _check(
        self, pool: SlotPool, slots: Sequence[int], records: Tensor, places: Sequence[int], written: Sequence[int]
    ) -> None:
        self._check_pool(pool, slots)
        wanted = f"uint8 [R, {self.nbytes}] on {pool.device}"
        if records.dtype != torch.uint8 or records.dim() != 2 or records.shape[1] != self.nbytes:
            raise CheckpointMismatchError(
                f"records are {records.dtype} {list(records.shape)}; {self.name} needs {wanted}"
            )
        if records.device != pool.device or not records.is_contiguous():
            raise CheckpointMismatchError(f"records must be contiguous and {wanted}; they are on {records.device}")
        if len(slots) != len(places) or not all(0 <= i < len(records) for i in places):
            raise IntegrityError(f"records {list(places)} of {len(records)} for slots {list(slots)}")
        if len(set(written)) != len(written):
            raise IntegrityError(f"one call cannot write a slot or record twice: {list(written)}")

    def _check_pool(self, pool: SlotPool, slots: Sequence[int]) -> None:
        if pool.layout != self.layout:
            raise CheckpointMismatchError(
                f"the pool's layout is {pool.layout.digest}, the codec's {self.layout.digest}"
            )
        if not all(SINK < slot <= pool.num_slots for slot in slots):
            raise IntegrityError(f"slots {list(slots)} are not all among 1..{pool.num_slots}")


def _form(record: Record, pool: SlotPool) -> Form:
    if has_triton(pool.device.type):
        from holdover.codec.triton import TritonForm

        return TritonForm(record, pool)
    return MetaForm() if pool.device.type == "meta" else TorchForm(record, pool)


def _index(numbers: Sequence[int], pool: SlotPool) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=pool.device)
