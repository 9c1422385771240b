"""A checkpoint: a header that says what the bytes are, and a lease that says where."""

from __future__ import annotations

import time
from collections.abc import Callable

from holdover.errors import OwnershipError
from holdover.state import CheckpointHeader, Lineage
from holdover.store.lease import LeaseState, ResidentTier, SlotLease
from holdover.store.mover import Transfer


class Checkpoint:
    """Whole recurrent state of a token sequence, owned by the cache and never advanced.

    Its bytes may move to another tier; the object stays, and with it its place in every order.

    Args:
        header: depth, key, layout, codec and lineage of the bytes.
        lease: cached lease of the slot that holds them; ownership moves to the checkpoint, and the lease given is
            dead from then on.
        restored: lineage that a restore of the bytes gives.

    Raises:
        OwnershipError: the lease is live, or owns nothing any more.

    Attributes:
        on_evict: told when the bytes are taken back under pressure; set by whoever the checkpoint belongs to.
        saved: tokens between the next checkpoint above it, or the first token, and itself; kept up to date, as are its
            branches, by whoever it belongs to. Until then it stands alone.
        branches: continuations of its tokens of which it is the deepest checkpoint.
        tier: where the bytes are; while they move down, still above.
        demotion: the move to the compressed tier that is under way, or None.
        is_kept: whether it stays as and where it is, whatever pressure there is.
        created: when it was made, in seconds of the monotonic clock.
        hits: restores so far.
    """

    __slots__ = (
        "_lease",
        "branches",
        "created",
        "demotion",
        "header",
        "hits",
        "is_kept",
        "on_evict",
        "pins",
        "restored",
        "saved",
        "tier",
    )

    def __init__(self, header: CheckpointHeader, lease: SlotLease, restored: Lineage) -> None:
        if lease.state is not LeaseState.CACHED:
            raise OwnershipError(f"a checkpoint needs a cached lease, not a {lease.state.value} one")
        self.header = header
        self.restored = restored
        self.pins = 0
        self.demotion: Demotion | None = None
        self.on_evict: Callable[[], None] | None = None
        self.saved, self.branches = header.depth, 1
        self.is_kept = False
        self.created = time.monotonic()
        self.hits = 0
        self._lease = lease.move(LeaseState.CACHED)
        # read for thousands of checkpoints when one has to go
        self.tier: ResidentTier = lease.tier

    @property
    def slot(self) -> int:
        """The slot, of its tier's pool."""
        return self._lease.slot

    @property
    def is_idle(self) -> bool:
        """Whether nobody reads the bytes and nobody moves them."""
        return not self.pins and self.demotion is None

    @property
    def may_go(self) -> bool:
        """Whether it may be moved or evicted now."""
        return self.is_idle and not self.is_kept

    def replace_bytes(self, header: CheckpointHeader, lease: SlotLease, restored: Lineage) -> None:
        """Let the checkpoint stand on other bytes of the same state; those it had are given back.

        Raises:
            OwnershipError: it is pinned.
        """
        self._refuse_pinned()
        old, self._lease = self._lease, lease.move(LeaseState.CACHED)
        self.header, self.restored, self.tier = header, restored, lease.tier
        old.release()

    def surrender(self, state: LeaseState = LeaseState.LIVE) -> SlotLease:
        """Hand the bytes over. The checkpoint must not be used any more.

        Raises:
            OwnershipError: it is pinned, or was dropped already.
        """
        self._refuse_pinned()
        return self._lease.move(state)

    def drop(self) -> None:
        """Release the bytes. The checkpoint must not be used any more.

        Raises:
            OwnershipError: it is pinned, or was dropped already.
        """
        self._refuse_pinned()
        self._lease.release()

    def _refuse_pinned(self) -> None:
        if self.pins:
            raise OwnershipError(f"checkpoint at depth {self.header.depth} is pinned {self.pins} times")


class Demotion:
    """A move of one checkpoint's bytes to the compressed tier, until it is committed or given up.

    Attributes:
        target: packed slot that the bytes go to.
        transfer: the job that writes it.
    """

    __slots__ = ("target", "transfer")

    def __init__(self, target: SlotLease, transfer: Transfer) -> None:
        self.target = target
        self.transfer = transfer
