"""Packed checkpoints in one fixed allocation: the compressed tier's slots (DASC App. B, Scheme 2, and B.2).

A record is the same bytes in a slot, in host memory and in a file. As with native slots, what a record is stands *with*
it: a slot whose packing failed, or was never finished, holds nobody's state.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from holdover.codec import Codec
from holdover.errors import CheckpointMismatchError
from holdover.state import CheckpointHeader, KeyChain, Lineage, SlotPool

_POISON = 0xAB


class PackedPool:
    """Slots of packed records. Slot 0 is reserved, as it is natively, so that an index of 0 never is a checkpoint.

    Args:
        codec: how a record is encoded.
        num_slots: usable slots, the reserved one not counted.
        device: where the records live.
    """

    def __init__(self, codec: Codec, num_slots: int, device: torch.device | str = "cpu") -> None:
        self.codec = codec
        self.num_slots = num_slots
        self.records = torch.zeros(num_slots + 1, codec.nbytes, dtype=torch.uint8, device=device)
        self._headers: list[CheckpointHeader | None] = [None] * (num_slots + 1)

    @staticmethod
    def bytes_for(codec: Codec, num_slots: int) -> int:
        """Exact bytes that a pool of ``num_slots`` allocates, the reserved slot included."""
        return codec.nbytes * (num_slots + 1)

    @property
    def nbytes(self) -> int:
        """Bytes of all records."""
        return self.records.numel()

    def header_of(self, header: CheckpointHeader) -> CheckpointHeader:
        """The header that a dense state has once it is packed here."""
        plan = self.codec.plan
        return replace(header, codec=self.codec.name, plan=plan.digest if plan is not None else None)

    def pack(self, pool: SlotPool, source: int, target: int) -> None:
        """Encode a native slot's bytes into ``target``, which holds nobody's state until `commit`."""
        self.forget(target)
        self.codec.pack(pool, [source], self.records, [target])

    def write(self, target: int, record: torch.Tensor) -> None:
        """Copy a record from elsewhere into ``target``, which holds nobody's state until `commit`.

        Raises:
            CheckpointMismatchError: it is not of this codec's size.
        """
        if record.numel() != self.codec.nbytes:
            raise CheckpointMismatchError(f"a record of {record.numel()} bytes; this codec's have {self.codec.nbytes}")
        self.forget(target)
        self.records[target].copy_(record)

    def commit(self, target: int, header: CheckpointHeader) -> None:
        """Declare that ``target`` was written whole and is what ``header`` says."""
        self._headers[target] = header

    def unpack(self, source: int, pool: SlotPool, target: int, chain: KeyChain, lineage: Lineage) -> None:
        """Decode a record into a native slot; omitted units become zero. Mutates ``target`` only."""
        pool.forget(target)
        self.codec.unpack(self.records, [source], pool, [target])
        pool.adopt(target, chain, lineage)

    def header(self, slot: int) -> CheckpointHeader:
        """What a slot's record is.

        Raises:
            CheckpointMismatchError: it was never written, or its packing was not finished.
        """
        header = self._headers[slot]
        if header is None:
            raise CheckpointMismatchError(f"packed slot {slot} holds no whole checkpoint")
        return header

    def record(self, slot: int) -> torch.Tensor:
        """A slot's bytes, a view uint8 ``[codec.nbytes]``."""
        return self.records[slot]

    def forget(self, slot: int) -> None:
        """Make a slot nobody's state."""
        self._headers[slot] = None

    def poison(self, slot: int) -> None:
        """Fill a slot with a pattern and forget what it was (tests; a freed slot must never be read)."""
        self.forget(slot)
        self.records[slot].fill_(_POISON)

    def restored(self, lineage: Lineage) -> Lineage:
        """Lineage of a state that is packed here and decoded again, its omitted units left at zero."""
        return lineage if self.codec.is_lossless else lineage.after_loss("nr")
