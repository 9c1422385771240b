"""The tree's KV rows: taking more of the pool, giving them to the tree, and who has to go for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import torch

from holdover.errors import CapacityError
from holdover.prefix import tree
from holdover.prefix.hold import Hold
from holdover.prefix.tree import Node, Root, Walk
from holdover.store import LRU, Balance, KVPool, StateTiers


class Lender(Protocol):
    """Others who keep rows of the same pool."""

    @property
    def reclaimable(self) -> int:
        """Rows that could come free."""

    def reclaim(self, rows: int) -> int:
        """Give up enough for ``rows`` rows to come free, or all that can be; how many did."""


class TreeRows:
    """Rows that the trees of all namespaces hold, and the order in which they are given up.

    Leaves go only, and a checkpoint goes with its node's rows.

    Args:
        kv: KV rows, shared by running sequences and the trees.
        tiers: where the nodes' checkpoints are.
        counters: counts what is evicted.
    """

    def __init__(self, kv: KVPool, tiers: StateTiers, counters: Counter[str]) -> None:
        self.kv = kv
        self.roots: dict[bytes, Root] = {}
        # who else keeps rows that nobody needs, if anyone does
        self.lender: Lender | None = None
        # every node stands in it exactly once
        self.order: LRU[Node] = LRU()
        self._tiers = tiers
        self._counters = counters

    def allocate(self, count: int) -> torch.Tensor:
        """Take KV rows, evicting least recently used leaves as needed, then what the lender can do without.

        Raises:
            CapacityError: running sequences hold too many; nothing was taken or evicted.
        """
        missing = count - self.kv.num_free
        if not self._can_evict(missing):
            lacking = missing - self.evictable()
            if self.lender is None or lacking > self.lender.reclaimable:
                free, total = self.kv.num_free, self.kv.num_rows
                raise CapacityError(f"{count} KV rows wanted; {free} of {total} are free and too few can be evicted")
            self.lender.reclaim(lacking)
        while self.kv.num_free < count:
            self._evict_leaf()
        return self.kv.allocate(count)

    def insert(self, root: Root, found: Walk, hold: Hold, tokens: Sequence[int], rows: torch.Tensor) -> Node:
        """Make a tree hold exactly ``tokens`` with a node ending there; free the rows that it already had.

        Args:
            root: the tree's.
            found: how far it can follow the tokens.
            hold: the sequence's hold.
            tokens: tokens of the prefix.
            rows: the row of each, int64 ``[len(tokens)]``; the hold's own rows come first.

        Raises:
            OwnershipError: a row that would be freed is not in use; nothing but bytes, for better ones, has changed.
        """
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
            self._counters["rows_improved"] += len(improved.tokens)
        if found.depth < len(tokens):
            node = tree.append(node, tuple(tokens[found.depth :]), rows[found.depth :].clone(), hold.lineage)
        return node

    def touch(self, node: Node) -> None:
        """Make the whole path to a node the most recently used: all of its rows were read."""
        # from the end up: no node is then older than one below it, and the oldest that is not locked is a leaf
        for ancestor in node.path()[:0:-1]:
            self.order.touch(ancestor)

    def evictable(self) -> int:
        """Rows that no sequence holds. O(nodes)."""
        return sum(len(node.tokens) for node in self.order if not node.locks)

    def lent(self) -> int:
        """Rows that the lender can do without."""
        return 0 if self.lender is None else self.lender.reclaimable

    def balance(self) -> Balance:
        """Where the KV rows are; rows that a sequence owns itself count as locked, those of idle chunks as cached."""
        cached, free, total = self.evictable() + self.lent(), self.kv.num_free, self.kv.num_rows
        return Balance(free, cached, total - free - cached, total)

    def flush(self) -> None:
        """Evict all that no sequence holds or pins."""
        while self.order.oldest(_leaf_may_go) is not None:
            self._evict_leaf()

    def prune(self, root: Node) -> None:
        """Forget a namespace that holds nothing: none is left behind, however many tenants come and go."""
        assert isinstance(root, Root)
        if root.is_leaf and not root.locks:
            self.roots.pop(root.namespace, None)

    def _can_evict(self, count: int) -> bool:
        """Whether ``count`` rows can be evicted. O(nodes that it takes)."""
        found = accumulate((len(node.tokens) for node in self.order if not node.locks), initial=0)
        return any(rows >= count for rows in found)

    def _evict_leaf(self) -> None:
        leaf = self.order.oldest(_leaf_may_go)
        if leaf is None:
            raise CapacityError("no KV rows can be evicted")
        if leaf.checkpoint is not None:
            self._tiers.discard(leaf.checkpoint)
            tree.take_state(leaf)
            self._counters["states_evicted"] += 1
        self.kv.free(leaf.rows)
        root = leaf.path()[0]
        tree.remove_leaf(leaf)
        self.order.discard(leaf)
        self._counters["rows_evicted"] += len(leaf.tokens)
        self.prune(root)


def _leaf_may_go(node: Node) -> bool:
    return node.is_leaf and not node.locks and (node.checkpoint is None or not node.checkpoint.pins)
