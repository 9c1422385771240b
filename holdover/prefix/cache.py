"""Prefix cache of hybrid models: KV rows and checkpoints in one radix tree, each under its own budget.

A hit needs both: it resumes at the deepest checkpoint at or below n-1 of n tokens, where the tree also holds every
KV row. Rows and slots come from two fixed pools, and running sequences and the cache share them: what no sequence
locks is cached until an allocation evicts it.

Ownership of a running sequence's rows::

    tokens   0 ........ hold.depth ........... computed
    rows     | the tree's, locked by the hold | the sequence's own |

`publish` moves rows from right to left. One thread (the engine's) makes all calls.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import torch

from holdover.errors import CapacityError, CheckpointMismatchError, OwnershipError
from holdover.prefix import tree
from holdover.prefix.hold import Hold, Match, Opened
from holdover.prefix.tree import Node, Root, Walk
from holdover.state import CheckpointHeader
from holdover.state.key import key_of
from holdover.store import LRU, Balance, Checkpoint, KVPool, LeaseState, SlotAllocator, SlotLease, restore

logger = logging.getLogger(__name__)


class PrefixCache:
    """Radix tree per namespace over two pools.

    Args:
        slots: state slots, shared by running sequences and checkpoints.
        kv: KV rows, shared by running sequences and the tree.
    """

    def __init__(self, slots: SlotAllocator, kv: KVPool) -> None:
        self.slots = slots
        self.kv = kv
        self.counters: Counter[str] = Counter()
        self.roots: dict[bytes, Root] = {}
        # an entry stands in each at most once: these are the only source of eviction order
        self.row_order: LRU[Node] = LRU()
        self.state_order: LRU[Node] = LRU()

    def match(self, namespace: bytes, tokens: Sequence[int]) -> Match:
        """Deepest point at which a sequence of ``tokens`` can resume. Mutates nothing. O(len(tokens)).

        At least one token is always left to run, since the next token's logits come from it.
        """
        root = self.roots.get(namespace)
        if root is None:
            return Match(None, 0)
        found = tree.walk(root, tokens)
        for node in reversed(found.nodes):
            if node.checkpoint is not None and node.depth < len(tokens):
                return Match(node, found.depth, node.checkpoint.header, node.checkpoint.tier)
        return Match(None, found.depth)

    def open(self, namespace: bytes, tokens: Sequence[int], *, reuse: bool = True) -> Opened:
        """Start a sequence: claim the deepest match and lease a live slot with its state.

        Mutates locks and both orders; may evict checkpoints. On any error nothing is held. A checkpoint whose bytes
        turn out to be another state's is dropped and counted, and the next shallower one is resumed.

        Args:
            namespace: model and tenant that the tokens belong to.
            tokens: the sequence so far; only a proper prefix of it is resumed.
            reuse: False to start from nothing whatever is cached.

        Raises:
            CapacityError: every slot is live.
        """
        match = self.match(namespace, tokens) if reuse else Match(None, 0)
        try:
            return self._open(namespace, tokens, match)
        except CheckpointMismatchError as error:
            logger.error("a checkpoint was refused: %s", error)
            self.counters["checkpoints_refused"] += 1
        node = match.node
        is_dropped = node is not None and _state_may_go(node)
        if node is not None and is_dropped:
            self._drop_state(node)
        # what is pinned cannot be dropped, so it is passed over
        return self.open(namespace, tokens, reuse=is_dropped)

    def release(self, hold: Hold) -> None:
        """Give a claim back. Mutates locks.

        Raises:
            OwnershipError: it was released already.
        """
        root = hold.node.path()[0]
        hold.drop()
        self._prune(root)

    def acquire_slot(self, state: LeaseState) -> SlotLease:
        """Lease a slot, evicting the least recently used checkpoint if none is free.

        Raises:
            CapacityError: every slot is live or pinned.
        """
        if not self.slots.num_free:
            self._evict_state()
        return self.slots.acquire(state)

    def allocate_rows(self, count: int) -> torch.Tensor:
        """Take KV rows, evicting least recently used leaves as needed.

        Raises:
            CapacityError: running sequences hold too many; nothing was taken or evicted.
        """
        if not self._can_evict(count - self.kv.num_free):
            free, total = self.kv.num_free, self.kv.num_rows
            raise CapacityError(f"{count} KV rows wanted; {free} of {total} are free and too few can be evicted")
        while self.kv.num_free < count:
            self._evict_leaf()
        return self.kv.allocate(count)

    def publish(self, hold: Hold, tokens: Sequence[int], rows: torch.Tensor, lease: SlotLease | None) -> torch.Tensor:
        """Put a sequence's prefix into the tree, with its state if ``lease`` is given.

        Mutates the tree; moves the hold to the new depth. Rows beyond the hold become the tree's; where the tree
        already had rows for a token, the sequence's own are freed and the tree's stand for them from now on.

        Args:
            hold: the sequence's hold.
            tokens: every token of the prefix, at least one; the hold's own tokens come first.
            rows: the row of each, int64 ``[len(tokens)]``; the hold's own rows come first.
            lease: cached lease of a slot whose state has seen exactly ``tokens``; ownership moves to the cache.
                If the point already has a checkpoint, the lease is released and the older one stays. Either way
                the lease given is dead.

        Returns:
            Rows of the prefix as the tree owns them, int64 ``[len(tokens)]``.

        Raises:
            CheckpointMismatchError: rows or state are of other tokens.
            OwnershipError: a row is not in use or named twice, the lease is live, or lease or hold are dead.
                On either error nothing was published, and lease and rows are still the caller's.
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
        header = None if lease is None else self._header_of(lease, root.namespace, tokens)
        node = self._insert(root, found, hold.depth, tokens, rows)
        if lease is not None and header is not None:
            self._attach(node, header, lease)
        hold.move(node)
        self._touch_rows(node)
        return hold.rows()

    def has_state(self, namespace: bytes, tokens: Sequence[int]) -> bool:
        """Whether a checkpoint of exactly these tokens is present. Mutates nothing."""
        root = self.roots.get(namespace)
        if root is None:
            return False
        found = tree.walk(root, tokens)
        node = found.nodes[-1] if found.nodes else root
        return node.depth == len(tokens) and node.checkpoint is not None

    def flush(self) -> int:
        """Drop everything that no sequence holds or pins. Returns the number of checkpoints dropped."""
        dropped = 0
        while (node := self.state_order.oldest(_state_may_go)) is not None:
            self._drop_state(node)
            dropped += 1
        while self.row_order.oldest(_leaf_may_go) is not None:
            self._evict_leaf()
        return dropped

    def evictable_rows(self) -> int:
        """Rows of the tree that no sequence holds. O(nodes)."""
        return sum(len(node.tokens) for node in self.row_order if not node.locks)

    def slot_balance(self) -> Balance:
        """Where the state slots are."""
        cached = sum(_state_may_go(node) for node in self.state_order)
        free, total = self.slots.num_free, self.slots.pool.num_slots
        # a snapshot on its way into the tree is a sequence's, although its lease says cached
        return Balance(free, cached, total - free - cached, total)

    def row_balance(self) -> Balance:
        """Where the KV rows are; rows that a sequence owns itself count as locked."""
        cached = self.evictable_rows()
        return Balance(self.kv.num_free, cached, self.kv.num_rows - self.kv.num_free - cached, self.kv.num_rows)

    def _open(self, namespace: bytes, tokens: Sequence[int], match: Match) -> Opened:
        node = match.node or self.roots.setdefault(namespace, Root(namespace))
        hold = Hold(node)
        for ancestor in node.path():
            ancestor.locks += 1
        try:
            lease = self._live_slot(node, namespace, tokens)
        except BaseException:
            self.release(hold)
            raise
        # only the state that was consumed is refreshed: touching its ancestors' states too would keep every
        # checkpoint of a shared prefix alive and push out those that are used
        if match.node is not None and match.node.checkpoint is not None:
            self.state_order.touch(match.node)
        self._touch_rows(node)
        return Opened(hold, lease, match)

    def _live_slot(self, node: Node, namespace: bytes, tokens: Sequence[int]) -> SlotLease:
        """Lease a live slot holding the state at ``node``."""
        checkpoint, pool = node.checkpoint, self.slots.pool
        if checkpoint is None:
            lease = self.acquire_slot(LeaseState.LIVE)
            try:
                pool.reset(lease.slot, namespace)
            except BaseException:
                lease.release()
                raise
            return lease
        checkpoint.pins += 1
        try:
            lease = self.acquire_slot(LeaseState.LIVE)
        except CapacityError:
            checkpoint.pins -= 1
            return self._take_over(node, checkpoint, namespace, tokens)
        except BaseException:
            checkpoint.pins -= 1
            raise
        try:
            restore(pool, lease.slot, checkpoint, expect=(node.depth, key_of(namespace, tokens[: node.depth])))
        except BaseException:
            lease.release()
            raise
        finally:
            checkpoint.pins -= 1
        return lease

    def _take_over(self, node: Node, checkpoint: Checkpoint, namespace: bytes, tokens: Sequence[int]) -> SlotLease:
        """Turn the last evictable slot, which is the checkpoint itself, into the live one: a move, no copy."""
        if checkpoint.pins:
            raise CapacityError(f"all {self.slots.pool.num_slots} state slots are live or pinned")
        expected = (node.depth, key_of(namespace, tokens[: node.depth]), self.slots.pool.layout.digest)
        checkpoint.header.expect(*expected)
        self.slots.pool.header(checkpoint.slot).expect(*expected)
        lease = checkpoint.surrender()
        node.checkpoint = None
        self.state_order.discard(node)
        return lease

    def _header_of(self, lease: SlotLease, namespace: bytes, tokens: Sequence[int]) -> CheckpointHeader:
        """Header of a state to be published, after verifying that it is that of exactly ``tokens``."""
        header = self.slots.pool.header(lease.slot)
        header.expect(len(tokens), key_of(namespace, tokens), self.slots.pool.layout.digest)
        if lease.state is not LeaseState.CACHED:
            raise OwnershipError(f"slot {lease.slot} is still {lease.state.value}: move its lease before publishing")
        return header

    def _insert(self, root: Root, found: Walk, owned: int, tokens: Sequence[int], rows: torch.Tensor) -> Node:
        """Make the tree hold exactly ``tokens`` with a node ending there; free the rows that it already had."""
        # first the only thing that can fail, so that a failure changes nothing
        self.kv.free(rows[owned : found.depth])
        node = found.nodes[-1] if found.nodes else root
        if found.partial is not None:
            node = tree.split(found.partial, found.depth)
        if found.depth < len(tokens):
            node = tree.append(node, tuple(tokens[found.depth :]), rows[found.depth :].clone())
        return node

    def _attach(self, node: Node, header: CheckpointHeader, lease: SlotLease) -> None:
        if node.checkpoint is None:
            node.checkpoint = Checkpoint(header, lease)
            self.counters["checkpoints_published"] += 1
        else:
            lease.release()
        self.state_order.touch(node)

    def _touch_rows(self, node: Node) -> None:
        # from the end up: no node is then older than one below it, and the oldest that is not locked is a leaf
        for ancestor in node.path()[:0:-1]:
            self.row_order.touch(ancestor)

    def _can_evict(self, count: int) -> bool:
        """Whether ``count`` rows of the tree can be evicted. O(nodes that it takes)."""
        found = accumulate((len(node.tokens) for node in self.row_order if not node.locks), initial=0)
        return any(rows >= count for rows in found)

    def _evict_state(self) -> None:
        node = self.state_order.oldest(_state_may_go)
        if node is not None:
            self._drop_state(node)
            self.counters["states_evicted"] += 1
            if node.is_leaf:
                # rows that lead to no state can be part of no hit: they go first
                self.row_order.demote(node)

    def _drop_state(self, node: Node) -> None:
        assert node.checkpoint is not None
        node.checkpoint.drop()
        node.checkpoint = None
        self.state_order.discard(node)

    def _evict_leaf(self) -> None:
        leaf = self.row_order.oldest(_leaf_may_go)
        if leaf is None:
            raise CapacityError("no KV rows can be evicted")
        if leaf.checkpoint is not None:
            self._drop_state(leaf)
            self.counters["states_evicted"] += 1
        self.kv.free(leaf.rows)
        root = leaf.path()[0]
        tree.remove_leaf(leaf)
        self.row_order.discard(leaf)
        self.counters["rows_evicted"] += len(leaf.tokens)
        self._prune(root)

    def _prune(self, root: Node) -> None:
        assert isinstance(root, Root)
        # a namespace that holds nothing leaves nothing behind, however many tenants come and go
        if root.is_leaf and not root.locks:
            self.roots.pop(root.namespace, None)


def _state_may_go(node: Node) -> bool:
    return node.checkpoint is not None and not node.checkpoint.pins


def _leaf_may_go(node: Node) -> bool:
    return node.is_leaf and not node.locks and (node.checkpoint is None or not node.checkpoint.pins)
