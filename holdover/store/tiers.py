"""Resident checkpoints in two tiers over two fixed pools, under one order of eviction (DASC §4.4, App. B.2).

Native slots are shared by running sequences and dense checkpoints; packed slots hold compressed ones. A new checkpoint
is packed where a packed slot is free, else it stays dense. When native slots run out, the oldest dense checkpoint is
demoted or evicted; demotion keeps its place in the order, since changing representation is not a use.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from holdover.codec import Codec
from holdover.errors import CapacityError, CheckpointMismatchError
from holdover.state import CheckpointHeader, KeyChain, Lineage, SlotPool
from holdover.store.checkpoint import Checkpoint
from holdover.store.demotion import Demotions
from holdover.store.lease import Balance, LeaseState, ResidentTier, SlotAllocator, SlotLease
from holdover.store.lru import LRU
from holdover.store.mover import Inline, Mover
from holdover.store.packed_pool import PackedPool
from holdover.store.reclaim import Reclaimer


@dataclass(frozen=True)
class TierOptions:
    """How the two tiers are used.

    Attributes:
        dense_spill: whether checkpoints may stay in native slots when no packed slot is free; protocols that measure
            compression switch it off, so that no hit can bypass it.
        watermark: native slots to keep free by demotions ahead of need.
        packed_above: depth up to which checkpoints are not packed. A unit that is left out and stays zero is missed as
            long as the whole prefix is within its horizon.
    """

    dense_spill: bool = True
    watermark: int = 0
    packed_above: int = 0


class StateTiers:
    """All resident checkpoints. Used by the engine thread only.

    Args:
        native: slots of running sequences and dense checkpoints.
        packed: slots of compressed checkpoints, or None for dense ones only.
        mover: runs demotions.
        options: how the tiers are used.
        order: in which checkpoints go; by last use if None.
    """

    def __init__(
        self,
        native: SlotAllocator[SlotPool],
        packed: SlotAllocator[PackedPool] | None = None,
        mover: Mover | None = None,
        options: TierOptions | None = None,
        order: LRU[Checkpoint] | None = None,
    ) -> None:
        self.native = native
        self.packed = packed
        # how a checkpoint is packed: the compressed tier's codec, else every unit as it is
        self.codec = packed.pool.codec if packed is not None else Codec(native.pool.layout)
        self.options = options or TierOptions()
        self.counters: Counter[str] = Counter()
        # the one order of both tiers; an entry stands in it while it may be found again
        self.order: LRU[Checkpoint] = LRU() if order is None else order
        self._demotions = (
            None if packed is None else Demotions(native.pool, packed.pool, mover or Inline(), self.counters)
        )
        self._reclaimer = Reclaimer(
            native, packed, self._demotions, self.order, self.counters, packed_above=self.options.packed_above
        )
        # dense ones that wait to be packed
        self._fresh: list[Checkpoint] = []

    def restored(self, lineage: Lineage, depth: int, *, dense: bool = False) -> Lineage:
        """Lineage that a checkpoint of a state of ``lineage`` gives back, once it lies where it would be put."""
        is_packed = self.is_packable(depth) and not (dense and self.options.dense_spill)
        return self._packed_pool.restored(lineage) if is_packed else lineage

    def acquire(self, state: LeaseState) -> SlotLease:
        """Lease a native slot, reclaiming one if none is free.

        Raises:
            CapacityError: every native slot is live, pinned or on its way down.
        """
        self._reclaimer.native_slot()
        return self.native.acquire(state)

    def snapshot(self, slot: int, *, dense: bool = False) -> Checkpoint:
        """A checkpoint of a live slot as it is now; the slot stays the sequence's own.

        Args:
            slot: a whole native slot.
            dense: whether to keep it exact even where a packed slot is free.

        Raises:
            CapacityError: no slot can be had for it.
        """
        header = self.native.pool.header(slot)
        is_packable = self.is_packable(header.depth) and not (dense and self.options.dense_spill)
        if is_packable and (target := self._reclaimer.packed_slot(may_evict=not self.options.dense_spill)) is not None:
            return self._pack(slot, target)
        if self.packed is not None and not self.options.dense_spill:
            raise CapacityError("no packed slot can be had, and checkpoints may not stay dense")
        try:
            lease = self.acquire(LeaseState.CACHED)
        except CapacityError:
            # every native slot runs: then the oldest compressed checkpoint is the one to go
            target = self._reclaimer.packed_slot(may_evict=True) if is_packable else None
            if target is None:
                raise
            return self._pack(slot, target)
        try:
            self.native.pool.copy(slot, lease.slot)
        except BaseException:
            lease.release()
            raise
        return Checkpoint(header, lease, header.lineage)

    def donate(self, lease: SlotLease) -> Checkpoint:
        """Turn a live slot into a checkpoint; ownership moves, and the bytes only where they must be packed at once.

        Raises:
            CapacityError: the bytes must be packed and no packed slot can be had; the lease is still the caller's.
            CheckpointMismatchError: the slot is not whole; likewise.
        """
        if self.packed is None or self.options.dense_spill:
            header = self.native.pool.header(lease.slot)
            # a checkpoint carries no log
            self.native.pool.settle([lease.slot])
            return Checkpoint(header, lease.move(LeaseState.CACHED), header.lineage)
        checkpoint = self.snapshot(lease.slot)
        lease.release()
        return checkpoint

    def admit(self, record: torch.Tensor, header: CheckpointHeader, chain: KeyChain) -> Checkpoint:
        """A checkpoint from a packed record that was kept elsewhere, in the tier that its codec belongs to.

        Args:
            record: uint8 ``[codec.nbytes]``.
            header: what it claims to be.
            chain: running key of the tokens whose state is wanted.

        Raises:
            CheckpointMismatchError: it is of another codec, plan or layout, or of other tokens.
            CapacityError: no slot can be had for it.
        """
        self._expect(header, chain)
        if self.packed is not None:
            if header != (wanted := self.packed.pool.header_of(header)):
                raise CheckpointMismatchError(f"a record of {header.codec} cannot lie among {wanted.codec}")
            target = self._reclaimer.packed_slot(may_evict=True)
            if target is None:
                raise CapacityError("every packed slot is pinned")
            try:
                self.packed.pool.write(target.slot, record)
                self.packed.pool.commit(target.slot, header)
                return Checkpoint(header, target, self.packed.pool.restored(header.lineage))
            except BaseException:
                target.release()
                raise
        lease = self.acquire(LeaseState.CACHED)
        try:
            self.codec.unpack(record.to(self.native.pool.device).unsqueeze(0), [0], self.native.pool, [lease.slot])
            self.native.pool.adopt(lease.slot, chain.copy(), header.lineage)
            return Checkpoint(header, lease, header.lineage)
        except BaseException:
            lease.release()
            raise

    def restore(self, checkpoint: Checkpoint, slot: int, expect: KeyChain) -> None:
        """Bring a checkpoint into a live slot, after verifying that it is the state of exactly the tokens expected.

        Omitted units are zero afterwards (DASC-NR, §4.2), and the slot's lineage says so. Mutates ``slot`` only.

        Raises:
            CheckpointMismatchError: the header, or the record kept with the bytes, says otherwise; nothing was written.
        """
        self.verify(checkpoint, expect)
        if checkpoint.tier == "native":
            self.native.pool.copy(checkpoint.slot, slot)
        else:
            self._packed_pool.unpack(checkpoint.slot, self.native.pool, slot, expect.copy(), checkpoint.restored)

    def verify(self, checkpoint: Checkpoint, expect: KeyChain) -> None:
        """Compare what is wanted with what the header says and with what is recorded beside the bytes.

        Raises:
            CheckpointMismatchError: they differ.
        """
        self._expect(checkpoint.header, expect)
        # the second witness: an entry may not point at another's slot
        if checkpoint.tier == "native":
            self._expect(self.native.pool.header(checkpoint.slot), expect)
        else:
            self._expect(self._packed_pool.header(checkpoint.slot), expect)

    def copy_refreshed(self, scratch: int, slot: int) -> None:
        """Put replayed omitted units into a restored slot; retained ones stay as they are (DASC-WR, §4.2)."""
        pool = self.native.pool
        self.codec.copy_omitted(pool, scratch, slot)
        pool.relabel(slot, Lineage("wr", pool.header(slot).lineage.losses))

    def copy_whole(self, scratch: int, slot: int, lineage: Lineage) -> None:
        """Put a state that was computed again from its first token in the place of a restored one."""
        pool = self.native.pool
        chain = pool.chain(slot)
        pool.copy(scratch, slot)
        pool.adopt(slot, chain, lineage)

    def encode(self, checkpoint: Checkpoint) -> tuple[CheckpointHeader, torch.Tensor]:
        """A checkpoint as a packed record in host memory, uint8 ``[codec.nbytes]``, and the record's header."""
        if checkpoint.tier == "compressed":
            record = self._packed_pool.record(checkpoint.slot)
            return checkpoint.header, record.clone() if record.device.type == "cpu" else record.cpu()
        pool, codec = self.native.pool, self.codec
        staging = torch.empty(1, codec.nbytes, dtype=torch.uint8, device=pool.device)
        codec.pack(pool, [checkpoint.slot], staging, [0])
        header = checkpoint.header
        return header if self.packed is None else self.packed.pool.header_of(header), staging[0].cpu()

    def keep(self, checkpoint: Checkpoint, *, dense: bool = False) -> None:
        """Let a checkpoint be found and evicted from now on. Cannot fail.

        Unless ``dense``, the next `maintain` packs it, if a packed slot is free then (compressed first).
        """
        self.order.touch(checkpoint)
        if not dense and checkpoint.tier == "native" and self.is_packable(checkpoint.header.depth):
            self._fresh.append(checkpoint)

    def abandon(self, checkpoint: Checkpoint) -> None:
        """Give back a checkpoint that was made and, because something failed, not kept; ignores one that was."""
        if checkpoint not in self.order:
            self.discard(checkpoint)

    def discard(self, checkpoint: Checkpoint) -> None:
        """Give a checkpoint's bytes back, whatever is under way with them.

        Raises:
            OwnershipError: it is pinned.
        """
        self._reclaimer.discard(checkpoint)

    def take_over(self, checkpoint: Checkpoint, expect: KeyChain) -> SlotLease:
        """Turn a dense checkpoint that nobody reads into a live slot: a move, no copy. A demotion of it is given up.

        Raises:
            CapacityError: it is not dense, or is being read.
            CheckpointMismatchError: it is the state of other tokens.
        """
        if checkpoint.demotion is not None and not checkpoint.pins and self._demotions is not None:
            self._demotions.give_up(checkpoint)
        if checkpoint.tier != "native" or not checkpoint.may_go:
            raise CapacityError(f"all {self.native.pool.num_slots} native state slots are live or pinned")
        self.verify(checkpoint, expect)
        lease = checkpoint.surrender()
        self.order.discard(checkpoint)
        return lease

    def maintain(self) -> None:
        """Finish demotions that have ended; start those of new checkpoints, and what the watermark asks for.

        Never waits.
        """
        if self._demotions is None:
            return
        self._demotions.finish_ended()
        fresh, self._fresh = self._fresh, []
        for checkpoint in fresh:
            if checkpoint in self.order and checkpoint.tier == "native" and checkpoint.may_go:
                target = self._reclaimer.packed_slot(may_evict=False)
                if target is not None:
                    self._demotions.start(checkpoint, target)
        self._reclaimer.keep_free(self.options.watermark)

    def finish(self) -> None:
        """Wait for every demotion under way."""
        if self._demotions is not None:
            self._demotions.finish_all()

    def close(self) -> None:
        """Wait for what is under way and stop moving anything."""
        if self._demotions is not None:
            self._demotions.close()

    def balance(self, tier: ResidentTier) -> Balance:
        """Where one tier's slots are. What is kept, or on its way between tiers (in both), counts as locked."""
        allocator = self.native if tier == "native" else self.packed
        if allocator is None:
            return Balance(0, 0, 0, 0)
        cached = sum(c.tier == tier and c.may_go for c in self.order)
        free, total = allocator.num_free, allocator.pool.num_slots
        # a snapshot on its way into the order is a sequence's, although its lease says cached
        return Balance(free, cached, total - free - cached, total)

    def checkpoint_bytes(self, tier: ResidentTier) -> int:
        """Bytes of a checkpoint in one tier."""
        return self.native.pool.layout.checkpoint_bytes if tier == "native" else self.codec.nbytes

    def is_packable(self, depth: int) -> bool:
        """Whether checkpoints at ``depth`` may be packed."""
        return self._reclaimer.may_pack(depth)

    @property
    def _packed_pool(self) -> PackedPool:
        assert self.packed is not None
        return self.packed.pool

    def _expect(self, header: CheckpointHeader, chain: KeyChain) -> None:
        header.expect(chain.depth, chain.key(), self.native.pool.layout.digest)

    def _pack(self, slot: int, target: SlotLease) -> Checkpoint:
        try:
            pool = self._packed_pool
            header = pool.header_of(self.native.pool.header(slot))
            pool.pack(self.native.pool, slot, target.slot)
            pool.commit(target.slot, header)
            return Checkpoint(header, target, pool.restored(header.lineage))
        except BaseException:
            target.release()
            raise
