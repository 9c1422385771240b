"""Leases: who owns a slot of recurrent state, native or packed.

A lease is exclusive and is released exactly once. Ownership moves: donating a finished sequence's slot to the cache
is `move`, not a copy. ``LIVE`` (a sequence advances it) and ``CACHED`` (a checkpoint's bytes, never advanced) are
states of a lease, not different kinds.
"""

from __future__ import annotations

import heapq
from enum import Enum
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from holdover.errors import CapacityError, IntegrityError, OwnershipError

# where a resident checkpoint's bytes are: a slot that a sequence could advance, or one of packed records
ResidentTier = Literal["native", "compressed"]


class Slots(Protocol):
    """What an allocator needs of the pool whose slots it hands out."""

    @property
    def num_slots(self) -> int:
        """Usable slots, numbered from 1."""

    def forget(self, slot: int) -> None:
        """Make a slot nobody's state."""

    def poison(self, slot: int) -> None:
        """Fill a slot with bytes that cannot go unnoticed, and forget what it was."""


P = TypeVar("P", bound=Slots)


class LeaseState(Enum):
    """What a leased slot is used for."""

    LIVE = "live"
    CACHED = "cached"


class Balance(NamedTuple):
    """Where a pool's units are; ``free + cached + locked == total`` always.

    Attributes:
        free: units that nobody owns.
        cached: units that eviction may take.
        locked: units that a running sequence owns or pins.
        total: all units.
    """

    free: int
    cached: int
    locked: int
    total: int


class SlotLease:
    """Exclusive ownership of one slot; made by `SlotAllocator` only."""

    __slots__ = ("_allocator", "_slot", "_state")

    def __init__(self, allocator: SlotAllocator[Any], slot: int, state: LeaseState) -> None:
        self._allocator = allocator
        self._slot: int | None = slot
        self._state = state

    @property
    def slot(self) -> int:
        """Index of the slot.

        Raises:
            OwnershipError: the lease was released or moved.
        """
        if self._slot is None:
            raise OwnershipError("lease used after it was released or moved")
        return self._slot

    @property
    def state(self) -> LeaseState:
        """Whether the slot is live or cached."""
        return self._state

    @property
    def tier(self) -> ResidentTier:
        """Which pool the slot is of."""
        return self._allocator.tier

    @property
    def is_held(self) -> bool:
        """Whether this lease still owns a slot."""
        return self._slot is not None

    def move(self, state: LeaseState) -> SlotLease:
        """Hand the slot to a new lease in ``state``; this one owns nothing any more. No bytes are copied."""
        successor = SlotLease(self._allocator, self.slot, state)
        self._allocator._owners[self.slot] = successor
        self._slot = None
        return successor

    def release(self) -> None:
        """Give the slot back.

        Raises:
            OwnershipError: the lease was already released or moved.
        """
        self._allocator._give_back(self)
        self._slot = None


class SlotAllocator(Generic[P]):
    """Hands out leases over a pool's slots. Used by the engine thread only.

    Args:
        pool: the slots.
        tier: which pool it is.
        poison: fill freed slots with bytes that cannot go unnoticed (tests).
    """

    def __init__(self, pool: P, tier: ResidentTier = "native", *, poison: bool = False) -> None:
        self.pool = pool
        self.tier = tier
        # a heap: the lowest slots go first, so that those that run together tend to be neighbours
        self._free = list(range(1, pool.num_slots + 1))
        self._owners: dict[int, SlotLease] = {}
        self._poison = poison
        if poison:
            for slot in self._free:
                pool.poison(slot)

    @property
    def num_free(self) -> int:
        """Slots that nobody owns."""
        return len(self._free)

    def acquire(self, state: LeaseState = LeaseState.LIVE) -> SlotLease:
        """Lease a free slot. Its bytes are undefined until `SlotPool.reset` or `SlotPool.copy`.

        Raises:
            CapacityError: no slot is free.
        """
        if not self._free:
            raise CapacityError(f"all {self.pool.num_slots} {self.tier} state slots are in use")
        lease = SlotLease(self, heapq.heappop(self._free), state)
        self._owners[lease.slot] = lease
        return lease

    def count(self, state: LeaseState) -> int:
        """Leases in ``state``."""
        return sum(lease.state is state for lease in self._owners.values())

    def check_integrity(self) -> None:
        """Verify that every slot is free or owned once.

        Raises:
            IntegrityError: with the slots that leaked or are owned twice.
        """
        free, owned = set(self._free), set(self._owners)
        everyone = set(range(1, self.pool.num_slots + 1))
        if len(free) != len(self._free) or free & owned or free | owned != everyone:
            leaked, both = sorted(everyone - free - owned), sorted(free & owned)
            raise IntegrityError(f"{self.tier} state slots leaked: {leaked}, both free and owned: {both}")
        stale = sorted(s for s, lease in self._owners.items() if not lease.is_held or lease.slot != s)
        if stale:
            raise IntegrityError(f"slots {stale} are owned by leases that no longer hold them")

    def _give_back(self, lease: SlotLease) -> None:
        slot = lease.slot
        if self._owners.get(slot) is not lease:
            raise OwnershipError(f"slot {slot} is not owned by the lease that releases it")
        del self._owners[slot]
        heapq.heappush(self._free, slot)
        # a released slot is nobody's state, whoever leases it next and forgets to reset it
        self.pool.forget(slot)
        if self._poison:
            self.pool.poison(slot)
