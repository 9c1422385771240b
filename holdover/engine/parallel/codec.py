"""One rank's part of a packed checkpoint: what its own heads retain, or what a placement gives it to store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from holdover.codec import Codec
from holdover.codec.record import align
from holdover.engine.parallel.ranks import Ranks
from holdover.errors import PlanError
from holdover.retention import RetentionPlan
from holdover.state import SlotPool
from holdover.store.exchange import Exchange


@dataclass(frozen=True, eq=False)
class ShardCodec(Codec):
    """Packs what the heads of one rank retain. What becomes of a checkpoint is decided by the whole model's plan.

    Attributes:
        whole: the whole model's plan; ``plan`` is this rank's part of it.
    """

    whole: RetentionPlan | None = None

    @property
    def omits(self) -> bool:
        """Whether some rank leaves a unit out: lineages may not differ between ranks."""
        return self.whole is not None and not self.whole.omits_nothing

    @property
    def omitted(self) -> float:
        """Fraction of the whole model's units that a checkpoint leaves out."""
        return 0.0 if self.whole is None else 1 - self.whole.offsets[-1] / self.whole.units


@dataclass(frozen=True, eq=False)
class ExchangedCodec(ShardCodec):
    """Packs what this rank stores: its own leading units, then others' (DASC App. B.1). Every call is collective.

    A record is ``[units | scales | conv]``, as wide on every rank; conv states stay with the rank that computes them.

    Attributes:
        exchange: this rank's end of the exchange.
        ranks: the group.

    Raises:
        PlanError: units are not packed one behind the other.
    """

    exchange: Exchange = field(kw_only=True)
    ranks: Ranks = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.arrangement != "ragged":
            raise PlanError(f"units of {self.arrangement} records cannot be stored on other ranks: use ragged ones")

    @property
    def nbytes(self) -> int:
        """Bytes of one record, the same on every rank."""
        return self._starts(self.exchange.placement.slot_width)[-1]

    @property
    def staging_bytes(self) -> int:
        """The same with a record as this rank computes it and as it stores it, twice while units are on their way."""
        return super().staging_bytes + 2 * (self._local.nbytes + self.nbytes)

    def pack(self, pool: SlotPool, slots: Sequence[int], records: Tensor, targets: Sequence[int]) -> None:
        """Pack this rank's part and store the units that the placement gives it; as `Codec.pack`.

        Raises:
            RanksLostError: the units could not be exchanged, or packed: the other ranks wait for them.
        """
        self._check(pool, slots, records, targets, written=targets)
        with self.ranks.together("a store of a checkpoint"):
            computed = torch.empty(len(slots), self._local.nbytes, dtype=torch.uint8, device=pool.device)
            self._local.pack(pool, slots, computed, range(len(slots)))
            stored = records.new_zeros(len(slots), self.nbytes)
            self._move(self._computed(computed), self._stored(stored), self.exchange.store)
            records[torch.tensor(targets, device=records.device)] = stored

    def unpack(self, records: Tensor, sources: Sequence[int], pool: SlotPool, slots: Sequence[int]) -> None:
        """Bring this rank's units back and restore its part; as `Codec.unpack`.

        Raises:
            RanksLostError: the units could not be exchanged, or unpacked.
        """
        self._check(pool, slots, records, sources, written=slots)
        with self.ranks.together("a load of a checkpoint"):
            stored = records[torch.tensor(sources, device=records.device)]
            computed = stored.new_zeros(len(slots), self._local.nbytes)
            self._move(self._stored(stored), self._computed(computed), self.exchange.load)
            self._local.unpack(computed, range(len(slots)), pool, slots)

    def _move(self, source: list[Tensor], target: list[Tensor], exchange: Callable[[Tensor], Tensor]) -> None:
        """Fill the sections of records from those of others, whose units ``exchange`` takes to their place."""
        *units, conv = source
        for theirs, ours in zip(units, target[:-1], strict=True):
            ours.copy_(exchange(theirs))
        target[-1].copy_(conv)

    def _computed(self, records: Tensor) -> list[Tensor]:
        return self._sections(records, self.exchange.placement.computed[self.exchange.rank])

    def _stored(self, records: Tensor) -> list[Tensor]:
        return self._sections(records, self.exchange.placement.slot_width)

    def _sections(self, records: Tensor, count: int) -> list[Tensor]:
        """Views of records ``[n, bytes]``: elements, and scales if any, ``[n, count, width]``, then conv states."""
        elements, scales, conv, _ = self._starts(count)
        units = [
            records[:, start : start + count * width].unflatten(1, (count, width))
            for start, width in zip((elements, scales), self._widths, strict=True)
            if width
        ]
        return [*units, records[:, conv : conv + self.layout.conv_bytes]]

    def _starts(self, units: int) -> tuple[int, int, int, int]:
        """Where elements, scales and conv states of a record of so many units begin, and where it ends."""
        scales = align(units * self._widths[0])
        conv = align(scales + units * self._widths[1])
        return 0, scales, conv, align(conv + self.layout.conv_bytes)

    @cached_property
    def _widths(self) -> tuple[int, int]:
        """Bytes of a unit's elements, and of its scales; placement has refused units of different sizes."""
        record = self._local.record
        part = record.layers[0]
        scale = record.temporal_dtype.itemsize if self.element == "int8" else 0
        return part.unit_rows * part.layer.d_v * record.stored.itemsize, part.unit_rows * scale

    @cached_property
    def _local(self) -> Codec:
        """What packs what this rank computes."""
        return Codec(self.layout, self.plan, self.arrangement, self.element)
