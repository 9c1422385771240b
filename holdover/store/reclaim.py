"""Who has to go when slots run out: the victim rules of the two resident tiers (DASC App. B.2)."""

from __future__ import annotations

from collections import Counter

from holdover.errors import CapacityError
from holdover.state import SlotPool
from holdover.store.checkpoint import Checkpoint
from holdover.store.demotion import Demotions
from holdover.store.lease import LeaseState, SlotAllocator, SlotLease
from holdover.store.lru import LRU
from holdover.store.packed_pool import PackedPool


class Reclaimer:
    """Frees slots by one order of eviction over both tiers. Used by the engine thread only.

    Args:
        native: slots of running sequences and dense checkpoints.
        packed: slots of compressed checkpoints, or None.
        demotions: moves from one to the other; None without packed slots.
        order: every checkpoint that may be found, oldest use first.
        counters: counts evictions as ``states_evicted``.
        packed_above: depth up to which checkpoints are not packed.
    """

    def __init__(
        self,
        native: SlotAllocator[SlotPool],
        packed: SlotAllocator[PackedPool] | None,
        demotions: Demotions | None,
        order: LRU[Checkpoint],
        counters: Counter[str],
        *,
        packed_above: int = 0,
    ) -> None:
        self._native = native
        self._packed = packed
        self._demotions = demotions
        self._order = order
        self._counters = counters
        self._packed_above = packed_above

    def may_pack(self, depth: int) -> bool:
        """Whether checkpoints at ``depth`` may be packed."""
        return self._packed is not None and depth > self._packed_above

    def packed_slot(self, *, may_evict: bool) -> SlotLease | None:
        """A packed slot, at the cost of the oldest compressed checkpoint if that is allowed; None if there is none."""
        if self._packed is None:
            return None
        if not self._packed.num_free and may_evict:
            victim = self._order.oldest(lambda c: c.tier == "compressed" and c.may_go)
            if victim is not None:
                self._evict(victim)
        return self._packed.acquire(LeaseState.CACHED) if self._packed.num_free else None

    def native_slot(self) -> None:
        """Make sure that one native slot is free, waiting for demotions that are under way.

        The oldest dense checkpoint is demoted if a packed slot is free, or becomes so by evicting a compressed
        checkpoint that is older; otherwise it is evicted.

        Raises:
            CapacityError: every native slot is live, pinned or on its way down.
        """
        if not self._native.num_free and self._demotions is not None:
            self._demotions.finish_ended()
        self._await_demotions()
        if self._native.num_free:
            return
        victim = self._oldest_dense()
        if victim is None:
            raise CapacityError(f"all {self._native.pool.num_slots} native state slots are live or pinned")
        if self._demote(victim) and self._demotions is not None:
            self._demotions.finish(victim)
        if not self._native.num_free and victim.is_idle and victim in self._order:
            # no packed slot for it, or the packing failed: a request may not wait for ever
            self._evict(victim)

    def keep_free(self, watermark: int) -> None:
        """Start demotions, or evict, until ``watermark`` native slots are free or on the way to it. Never waits."""
        while self._demotions is not None and self._native.num_free + len(self._demotions) < watermark:
            victim = self._oldest_dense()
            if victim is None:
                return
            if not self._demote(victim):
                self._evict(victim)

    def discard(self, checkpoint: Checkpoint) -> None:
        """Give a checkpoint's bytes back, whatever is under way with them.

        Raises:
            OwnershipError: it is pinned.
        """
        if checkpoint.demotion is not None and self._demotions is not None:
            self._demotions.give_up(checkpoint)
        checkpoint.drop()
        self._order.discard(checkpoint)

    def _oldest_dense(self) -> Checkpoint | None:
        return self._order.oldest(lambda c: c.tier == "native" and c.may_go)

    def _demote(self, dense: Checkpoint) -> bool:
        """Start to demote the oldest dense checkpoint; False where it is itself the one that has to go."""
        if self._packed is None or self._demotions is None or not self.may_pack(dense.header.depth):
            return False
        if not self._packed.num_free:
            first = self._order.oldest(lambda c: c.may_go)
            if first is None or first is dense:
                return False
            # older than the oldest dense one: the oldest compressed one
            self._evict(first)
        self._demotions.start(dense, self._packed.acquire(LeaseState.CACHED))
        return True

    def _await_demotions(self) -> None:
        if self._demotions is None:
            return
        for moving in self._demotions:
            if self._native.num_free:
                return
            # it stays open where a hit reads the dense bytes: they cannot be given back now
            self._demotions.finish(moving)

    def _evict(self, checkpoint: Checkpoint) -> None:
        self.discard(checkpoint)
        self._counters["states_evicted"] += 1
        if checkpoint.on_evict is not None:
            checkpoint.on_evict()
