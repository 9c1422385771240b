"""A checkpoint: a header that says what the bytes are, and a lease that says where."""

from __future__ import annotations

from holdover.errors import OwnershipError
from holdover.state import CheckpointHeader, SlotPool
from holdover.store.lease import LeaseState, SlotLease


class Checkpoint:
    """Whole recurrent state of a token sequence, owned by the cache and never advanced.

    Args:
        header: depth, key, layout and lineage of the bytes.
        lease: cached lease of the native slot that holds them; ownership moves to the checkpoint, and the lease
            given is dead from then on.

    Raises:
        OwnershipError: the lease is live, or owns nothing any more.
    """

    __slots__ = ("_lease", "header", "pins")

    def __init__(self, header: CheckpointHeader, lease: SlotLease) -> None:
        if lease.state is not LeaseState.CACHED:
            raise OwnershipError(f"a checkpoint needs a cached lease, not a {lease.state.value} one")
        self.header = header
        self.pins = 0
        self._lease = lease.move(LeaseState.CACHED)

    @property
    def tier(self) -> str:
        """Where the bytes are."""
        return "slot"

    @property
    def slot(self) -> int:
        """The native slot."""
        return self._lease.slot

    def surrender(self) -> SlotLease:
        """Hand the bytes over as a live slot. The checkpoint must not be used any more.

        Raises:
            OwnershipError: it is pinned, or was dropped already.
        """
        self._refuse_pinned()
        return self._lease.move(LeaseState.LIVE)

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


def restore(pool: SlotPool, slot: int, checkpoint: Checkpoint, *, expect: tuple[int, bytes]) -> None:
    """Copy a checkpoint into a live slot, after verifying that it is the state of exactly the tokens expected.

    Mutates ``slot`` only; the checkpoint stays as it was and can be restored again.

    Args:
        pool: pool of both slots.
        slot: the live slot.
        checkpoint: what to restore.
        expect: depth and key of the tokens whose state is wanted.

    Raises:
        CheckpointMismatchError: the header, or the slot's own record, says otherwise; nothing was copied.
    """
    depth, key = expect
    checkpoint.header.expect(depth, key, pool.layout.digest)
    # the record kept with the bytes is the second witness: an entry may not point at another's slot
    pool.header(checkpoint.slot).expect(depth, key, pool.layout.digest)
    pool.copy(checkpoint.slot, slot)
