"""The tree's checkpoints: where they come to a node's end, are read there, and leave it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from holdover.errors import CapacityError
from holdover.prefix import tree
from holdover.prefix.rows import TreeRows
from holdover.prefix.tree import Node
from holdover.state import Lineage
from holdover.state.key import chain_of
from holdover.store import Checkpoint, LeaseState, SlotLease, StateTiers


class TreeStates:
    """Checkpoints that the trees of all namespaces hold; the tiers have their order.

    Args:
        rows: rows of the trees.
        tiers: where the checkpoints are.
    """

    def __init__(self, rows: TreeRows, tiers: StateTiers) -> None:
        self._rows = rows
        self._tiers = tiers

    def attach(self, node: Node, checkpoint: Checkpoint, *, dense: bool) -> None:
        """Put a checkpoint at a node's end; of two, the better one stays, and of equals the older.

        Args:
            node: where it belongs.
            checkpoint: state after exactly the node's tokens; ownership moves here.
            dense: keep it exact even where it could be packed.
        """
        older = node.checkpoint
        if older is not None and not checkpoint.restored.is_better(older.restored):
            self._tiers.discard(checkpoint)
            self._tiers.order.touch(older)
            return
        if older is not None and (older.pins or older.is_kept):
            self._tiers.discard(checkpoint)
            return
        if older is not None:
            self.drop(node)
            self._tiers.counters["checkpoints_improved"] += 1
        tree.put_state(node, checkpoint)
        checkpoint.on_evict = partial(self._forget, node, checkpoint)
        self._tiers.counters["checkpoints_published"] += 1
        self._tiers.keep(checkpoint, dense=dense)

    def use(self, node: Node) -> None:
        """Note that a sequence resumed at a node, if that has a checkpoint: it becomes the newest."""
        if node.checkpoint is not None:
            self._tiers.order.touch(node.checkpoint)
            tree.count_hit(node, node.checkpoint)

    def drop(self, node: Node) -> None:
        """Take a node's checkpoint away.

        Raises:
            OwnershipError: it is pinned.
        """
        assert node.checkpoint is not None
        self._tiers.discard(node.checkpoint)
        tree.take_state(node)

    def lease(self, node: Node, namespace: bytes, tokens: Sequence[int], lineage: Lineage) -> SlotLease:
        """Lease a live slot holding the state at ``node``.

        Raises:
            CapacityError: every slot is live.
            CheckpointMismatchError: the checkpoint's bytes are another state's.
        """
        checkpoint, pool = node.checkpoint, self._tiers.native.pool
        if checkpoint is None:
            lease = self._tiers.acquire(LeaseState.LIVE)
            try:
                pool.reset(lease.slot, namespace)
            except BaseException:
                lease.release()
                raise
            return lease
        expect = chain_of(namespace, tokens[: node.depth])
        checkpoint.pins += 1
        try:
            lease = self._tiers.acquire(LeaseState.LIVE)
        except CapacityError:
            checkpoint.pins -= 1
            # the last slot that could be had is the checkpoint's own
            lease = self._tiers.take_over(checkpoint, expect)
            tree.take_state(node)
            pool.relabel(lease.slot, lineage)
            return lease
        except BaseException:
            checkpoint.pins -= 1
            raise
        try:
            self._tiers.restore(checkpoint, lease.slot, expect)
            pool.relabel(lease.slot, lineage)
        except BaseException:
            lease.release()
            raise
        finally:
            checkpoint.pins -= 1
        return lease

    def _forget(self, node: Node, checkpoint: Checkpoint) -> None:
        """The tiers have taken a checkpoint's bytes back."""
        if node.checkpoint is checkpoint:
            tree.take_state(node)
            if node.is_leaf:
                # rows that lead to no state can be part of no hit: they go first
                self._rows.order.demote(node)
