"""Radix tree over token ids. Structure only: it knows nothing of budgets or eviction order.

Every node owns the KV rows of its edge's tokens and, at its end, at most one checkpoint. A checkpoint is always at a
node's end: publishing one splits an edge there. Matching never changes the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from holdover.state import EXACT, Lineage
from holdover.store import Checkpoint
from holdover.store.spill import EntryName


class Node:
    """One edge of the tree and the point where it ends.

    Attributes:
        parent: node above; None for a root.
        tokens: token ids of the edge, not empty except in a root.
        rows: KV rows of those tokens, int64 ``[len(tokens)]``.
        depth: tokens from the root to the node's end.
        children: nodes below, by their first token.
        lineage: how the rows came to be.
        checkpoint: state after exactly ``depth`` tokens, or None.
        locks: running sequences whose KV starts with the path to this node's end.
        spilled: entry below the resident tiers that stands for the state at the node's end, or None.
    """

    __slots__ = ("checkpoint", "children", "depth", "lineage", "locks", "parent", "rows", "spilled", "tokens")

    def __init__(
        self, parent: Node | None, tokens: tuple[int, ...], rows: torch.Tensor, lineage: Lineage = EXACT
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.rows = rows
        self.lineage = lineage
        self.depth: int = (parent.depth if parent else 0) + len(tokens)
        self.children: dict[int, Node] = {}
        self.checkpoint: Checkpoint | None = None
        self.locks = 0
        self.spilled: EntryName | None = None

    @property
    def is_leaf(self) -> bool:
        """Whether the node has nothing below it."""
        return not self.children

    def path(self) -> list[Node]:
        """Nodes from the root down to this one, both included."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def path_lineage(self) -> Lineage:
        """Lineage of all rows from the root to this node's end."""
        return EXACT.worst(*(node.lineage for node in self.path()))


class Root(Node):
    """Root of one namespace's tree; ``locks`` counts every hold below it."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: bytes) -> None:
        super().__init__(None, (), torch.empty(0, dtype=torch.int64))
        self.namespace = namespace


class Walk(NamedTuple):
    """How far a token sequence can be followed.

    Attributes:
        nodes: nodes followed to their end, from below the root down.
        partial: node of which only a part of the edge matched, or None.
        depth: tokens matched, the partial edge included.
    """

    nodes: list[Node]
    partial: Node | None
    depth: int


def walk(root: Node, tokens: Sequence[int]) -> Walk:
    """Follow ``tokens`` from ``root``. Mutates nothing. O(len(tokens))."""
    nodes: list[Node] = []
    node, depth = root, 0
    while depth < len(tokens) and (child := node.children.get(tokens[depth])) is not None:
        shared = _common_prefix(child.tokens, tokens, depth)
        depth += shared
        if shared < len(child.tokens):
            return Walk(nodes, child, depth)
        nodes.append(child)
        node = child
    return Walk(nodes, None, depth)


def split(node: Node, depth: int) -> Node:
    """Cut ``node``'s edge at ``depth`` and return the new upper half. Mutates the tree; ``node`` stays the lower half.

    A checkpoint and holds stay with the lower half, whose end has not moved; its locks also pass through the upper.
    """
    assert node.parent is not None
    cut = depth - node.parent.depth
    assert 0 < cut < len(node.tokens)
    upper = Node(node.parent, node.tokens[:cut], node.rows[:cut].clone(), node.lineage)
    upper.locks = node.locks
    upper.children[node.tokens[cut]] = node
    node.parent.children[node.tokens[0]] = upper
    node.parent, node.tokens, node.rows = upper, node.tokens[cut:], node.rows[cut:].clone()
    return upper


def append(parent: Node, tokens: tuple[int, ...], rows: torch.Tensor, lineage: Lineage) -> Node:
    """Hang a new leaf under ``parent``. Mutates the tree."""
    assert tokens[0] not in parent.children
    leaf = Node(parent, tokens, rows, lineage)
    parent.children[tokens[0]] = leaf
    return leaf


def remove_leaf(leaf: Node) -> None:
    """Take a leaf off the tree. Mutates the tree; the leaf's rows and checkpoint are the caller's."""
    assert leaf.is_leaf
    assert leaf.parent is not None
    del leaf.parent.children[leaf.tokens[0]]


def descendants(root: Node) -> Iterator[Node]:
    """Every node below ``root``, parents first."""
    pending = list(root.children.values())
    while pending:
        node = pending.pop()
        yield node
        pending.extend(node.children.values())


def _common_prefix(edge: tuple[int, ...], tokens: Sequence[int], start: int) -> int:
    end = min(len(edge), len(tokens) - start)
    # equal edges are the common case, and comparing slices is far faster than a loop
    if tuple(tokens[start : start + end]) == edge[:end]:
        return end
    return next(i for i in range(end) if edge[i] != tokens[start + i])
