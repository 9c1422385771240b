"""Prefix cache of hybrid models: KV rows and checkpoints in one radix tree, each under its own budget.

A hit needs both: it resumes at the deepest acceptable checkpoint at or below n-1 of n tokens, where the tree also
holds every KV row. Rows and slots come from fixed pools, and running sequences and the cache share them: what no
sequence locks is cached until an allocation evicts it.

Ownership of a running sequence's rows::

    tokens   0 ........ hold.depth ........... computed
    rows     | the tree's, locked by the hold | the sequence's own |

`publish` moves rows from right to left. One thread (the engine's) makes all calls.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import torch

from holdover.errors import CapacityError, CheckpointMismatchError, OwnershipError
from holdover.prefix import tree
from holdover.prefix.eviction.standing import standing_at
from holdover.prefix.hold import Hold, Match, Opened
from holdover.prefix.pins import Pins
from holdover.prefix.rows import TreeRows
from holdover.prefix.tree import Node, Root, Walk
from holdover.state import Lineage
from holdover.state.key import chain_of
from holdover.store import Checkpoint, KVPool, LeaseState, SlotLease, StateTiers

logger = logging.getLogger(__name__)


class PrefixCache:
    """Radix tree per namespace over the pools.

    Args:
        tiers: state slots, shared by running sequences and checkpoints.
        kv: KV rows, shared by running sequences and the tree.
    """

    def __init__(self, tiers: StateTiers, kv: KVPool) -> None:
        self.tiers = tiers
        self.kv = kv
        # one set of counters for the cache and what it stands on
        self.counters = tiers.counters
        # with the tiers' order of checkpoints, the only source of eviction order
        self.rows = TreeRows(kv, tiers, self.counters)
        self.roots = self.rows.roots
        self.pins = Pins(self.rows, tiers)

    def match(self, namespace: bytes, tokens: Sequence[int], *, max_losses: int | None = None) -> Match:
        """Deepest point at which a sequence of ``tokens`` can resume. Mutates nothing. O(len(tokens)).

        At least one token is always left to run, since the next token's logits come from it.

        Args:
            namespace: model and tenant that the tokens belong to.
            tokens: the sequence so far.
            max_losses: most lossy restores that the resumed state may have in its past, this one included; 0 for
                exact states only, None for any number.
        """
        root = self.roots.get(namespace)
        if root is None:
            return Match(None, 0)
        found = tree.walk(root, tokens)
        for node in reversed(found.nodes):
            checkpoint = node.checkpoint
            if checkpoint is None or node.depth >= len(tokens):
                continue
            lineage = checkpoint.restored.worst(node.path_lineage())
            if max_losses is None or lineage.losses <= max_losses:
                return Match(node, found.depth, checkpoint.tier, lineage)
        return Match(None, found.depth)

    def open(
        self, namespace: bytes, tokens: Sequence[int], *, reuse: bool = True, max_losses: int | None = None
    ) -> Opened:
        """Start a sequence: claim the deepest match and lease a live slot with its state.

        Mutates locks and both orders; may evict checkpoints. On any error nothing is held. A checkpoint whose bytes
        turn out to be another state's is dropped and counted, and the next shallower one is resumed.

        Args:
            namespace: model and tenant that the tokens belong to.
            tokens: the sequence so far; only a proper prefix of it is resumed.
            reuse: False to start from nothing whatever is cached.
            max_losses: as for `match`.

        Raises:
            CapacityError: every slot is live.
        """
        match = self.match(namespace, tokens, max_losses=max_losses) if reuse else Match(None, 0)
        try:
            return self._open(namespace, tokens, match)
        except CheckpointMismatchError as error:
            logger.error("a checkpoint was refused: %s", error)
            self.counters["checkpoints_refused"] += 1
        checkpoint = match.node.checkpoint if match.node is not None else None
        is_dropped = match.node is not None and checkpoint is not None and not checkpoint.pins
        if match.node is not None and is_dropped:
            self._drop_state(match.node)
        # what is pinned cannot be dropped, so it is passed over
        return self.open(namespace, tokens, reuse=is_dropped, max_losses=max_losses)

    def release(self, hold: Hold) -> None:
        """Give a claim back. Mutates locks.

        Raises:
            OwnershipError: it was released already.
        """
        root = hold.node.path()[0]
        hold.drop()
        self.rows.prune(root)

    def publish(
        self,
        hold: Hold,
        tokens: Sequence[int],
        rows: torch.Tensor,
        checkpoint: Checkpoint | None,
        *,
        dense: bool = False,
    ) -> torch.Tensor:
        """Put a sequence's prefix into the tree, with its state if ``checkpoint`` is given.

        Mutates the tree; moves the hold to the new depth. Rows beyond the hold become the tree's; where the tree
        already had rows for a token, the sequence's own are freed and the tree's stand for them from now on, with
        the sequence's bytes if those are of better lineage (exact replaces approximate, never the reverse).

        Args:
            hold: the sequence's hold.
            tokens: every token of the prefix, at least one; the hold's own tokens come first.
            rows: the row of each, int64 ``[len(tokens)]``; the hold's own rows come first.
            checkpoint: state of exactly ``tokens``; ownership moves to the cache. If the point has one already that
                is at least as good, the older one stays and this one is dropped.
            dense: keep the checkpoint exact even where it could be packed.

        Returns:
            Rows of the prefix as the tree owns them, int64 ``[len(tokens)]``.

        Raises:
            CheckpointMismatchError: rows or state are of other tokens.
            OwnershipError: a row is not in use or named twice, or the hold is dead.
                On either error nothing was published, and checkpoint and rows are still the caller's.
        """
        root = hold.node.path()[0]
        assert isinstance(root, Root)
        if not hold.depth <= len(tokens) == len(rows) or not len(tokens):
            raise CheckpointMismatchError(f"{len(tokens)} tokens and {len(rows)} rows above a hold of {hold.depth}")
        found = tree.walk(root, tokens)
        if (hold.depth and hold.node not in found.nodes) or not torch.equal(rows[: hold.depth], hold.rows()):
            raise CheckpointMismatchError(f"tokens or rows differ from the hold's within its {hold.depth} tokens")
        if not self.kv.are_used(rows):
            raise OwnershipError("a KV row given to the cache is not in use, or named twice")
        if checkpoint is not None:
            self.tiers.verify(checkpoint, chain_of(root.namespace, tokens))
        node = self._insert(root, found, hold, tokens, rows)
        hold.move(node)
        self.rows.touch(node)
        if checkpoint is not None:
            self._attach(node, checkpoint, dense=dense)
        return hold.rows()

    def has_state(self, namespace: bytes, tokens: Sequence[int], lineage: Lineage) -> bool:
        """Whether a checkpoint of exactly these tokens is present that restores to ``lineage`` or better."""
        root = self.roots.get(namespace)
        if root is None:
            return False
        found = tree.walk(root, tokens)
        node = found.nodes[-1] if found.nodes else root
        checkpoint = node.checkpoint
        return node.depth == len(tokens) and checkpoint is not None and not lineage.is_better(checkpoint.restored)

    def flush(self) -> int:
        """Drop everything that no sequence holds or pins. Returns the number of checkpoints dropped."""
        self.tiers.finish()
        dropped = [checkpoint for checkpoint in self.tiers.order if checkpoint.may_go]
        for checkpoint in dropped:
            self.tiers.discard(checkpoint)
            if checkpoint.on_evict is not None:
                checkpoint.on_evict()
        self.rows.flush()
        return len(dropped)

    def _open(self, namespace: bytes, tokens: Sequence[int], match: Match) -> Opened:
        node = match.node or self.roots.setdefault(namespace, Root(namespace))
        hold = Hold(node, match.lineage)
        try:
            lease = self._live_slot(node, namespace, tokens, match.lineage)
        except BaseException:
            self.release(hold)
            raise
        # only the state that was consumed is refreshed: touching its ancestors' states too would keep every
        # checkpoint of a shared prefix alive and push out those that are used
        if match.node is not None and match.node.checkpoint is not None:
            self.tiers.order.touch(match.node.checkpoint)
            match.node.checkpoint.hits += 1
        self.rows.touch(node)
        return Opened(hold, lease, match)

    def _live_slot(self, node: Node, namespace: bytes, tokens: Sequence[int], lineage: Lineage) -> SlotLease:
        """Lease a live slot holding the state at ``node``."""
        checkpoint, pool = node.checkpoint, self.tiers.native.pool
        if checkpoint is None:
            lease = self.tiers.acquire(LeaseState.LIVE)
            try:
                pool.reset(lease.slot, namespace)
            except BaseException:
                lease.release()
                raise
            return lease
        expect = chain_of(namespace, tokens[: node.depth])
        checkpoint.pins += 1
        try:
            lease = self.tiers.acquire(LeaseState.LIVE)
        except CapacityError:
            checkpoint.pins -= 1
            # the last slot that could be had is the checkpoint's own
            lease = self.tiers.take_over(checkpoint, expect)
            node.checkpoint = None
            pool.relabel(lease.slot, lineage)
            return lease
        except BaseException:
            checkpoint.pins -= 1
            raise
        try:
            self.tiers.restore(checkpoint, lease.slot, expect)
            pool.relabel(lease.slot, lineage)
        except BaseException:
            lease.release()
            raise
        finally:
            checkpoint.pins -= 1
        return lease

    def _insert(self, root: Root, found: Walk, hold: Hold, tokens: Sequence[int], rows: torch.Tensor) -> Node:
        """Make the tree hold exactly ``tokens`` with a node ending there; free the rows that it already had."""
        worse = [n for n in found.nodes if n.depth > hold.depth and hold.lineage.is_better(n.lineage)]
        is_partial_worse = found.partial is not None and hold.lineage.is_better(found.partial.lineage)
        for node in [*worse, *([found.partial] if is_partial_worse and found.partial else [])]:
            start, end = node.depth - len(node.tokens), min(node.depth, found.depth)
            self.kv.copy(rows[start:end], node.rows[: end - start])
        # the last thing that can fail: until here nothing but bytes, for better ones, has changed
        self.kv.free(rows[hold.depth : found.depth])
        node = found.nodes[-1] if found.nodes else root
        if found.partial is not None:
            node = tree.split(found.partial, found.depth)
            worse += [node] if is_partial_worse else []
        for improved in worse:
            improved.lineage = hold.lineage
            self.counters["rows_improved"] += len(improved.tokens)
        if found.depth < len(tokens):
            node = tree.append(node, tuple(tokens[found.depth :]), rows[found.depth :].clone(), hold.lineage)
        return node

    def _attach(self, node: Node, checkpoint: Checkpoint, *, dense: bool) -> None:
        older = node.checkpoint
        if older is not None and not checkpoint.restored.is_better(older.restored):
            self.tiers.discard(checkpoint)
            self.tiers.order.touch(older)
            return
        if older is not None and (older.pins or older.is_kept):
            self.tiers.discard(checkpoint)
            return
        if older is not None:
            self._drop_state(node)
            self.counters["checkpoints_improved"] += 1
        node.checkpoint = checkpoint
        checkpoint.on_evict = partial(self._forget_state, node, checkpoint)
        checkpoint.standing = partial(standing_at, node)
        self.counters["checkpoints_published"] += 1
        self.tiers.keep(checkpoint, dense=dense)

    def _forget_state(self, node: Node, checkpoint: Checkpoint) -> None:
        """The tiers have taken a checkpoint's bytes back."""
        if node.checkpoint is checkpoint:
            node.checkpoint = None
            if node.is_leaf:
                # rows that lead to no state can be part of no hit: they go first
                self.rows.order.demote(node)

    def _drop_state(self, node: Node) -> None:
        assert node.checkpoint is not None
        self.tiers.discard(node.checkpoint)
        node.checkpoint = None
