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

import torch

from holdover.errors import CheckpointMismatchError, OwnershipError
from holdover.prefix import tree
from holdover.prefix.hold import Hold, Match, Opened
from holdover.prefix.pins import Pins
from holdover.prefix.rows import TreeRows
from holdover.prefix.states import TreeStates
from holdover.prefix.tree import Root
from holdover.state import Lineage
from holdover.state.key import chain_of
from holdover.store import Checkpoint, KVPool, StateTiers

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
        self._states = TreeStates(self.rows, tiers)

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
            self._states.drop(match.node)
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
        node = self.rows.insert(root, found, hold, tokens, rows)
        hold.move(node)
        self.rows.touch(node)
        if checkpoint is not None:
            self._states.attach(node, checkpoint, dense=dense)
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
            lease = self._states.lease(node, namespace, tokens, match.lineage)
        except BaseException:
            self.release(hold)
            raise
        # only the state that was consumed is refreshed: touching its ancestors' states too would keep every
        # checkpoint of a shared prefix alive and push out those that are used
        self._states.use(node)
        self.rows.touch(node)
        return Opened(hold, lease, match)
