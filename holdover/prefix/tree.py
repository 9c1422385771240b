"""Radix tree over token ids. Structure only: it knows nothing of budgets or eviction order.

Every node owns the KV rows of its edge's tokens and, at its end, at most one checkpoint. A checkpoint is always at a
node's end: publishing one splits an edge there. Matching never changes the tree.

Every node says where a state at its end stands among the tree's checkpoints: which tokens it saves, and for how many
branches. Whatever changes the tree keeps that up, so that asking for it walks no tree.
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
        checkpoint: state after exactly ``depth`` tokens, or None; set by `put_state` and `take_state`.
        locks: running sequences whose KV starts with the path to this node's end.
        spilled: entry below the resident tiers that stands for the state at the node's end, or None.
        saved: tokens between the next checkpoint above, or the first token, and the node's end.
        branches: leaves below the node, or itself, that have no checkpoint nearer, or none but an unproven one.
    """

    __slots__ = (
        "branches",
        "checkpoint",
        "children",
        "depth",
        "lineage",
        "locks",
        "parent",
        "rows",
        "saved",
        "spilled",
        "tokens",
    )

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
        self.saved, self.branches = _saved(self), 1

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
    upper.branches = _counted(node)
    upper.children[node.tokens[cut]] = node
    node.parent.children[node.tokens[0]] = upper
    node.parent, node.tokens, node.rows = upper, node.tokens[cut:], node.rows[cut:].clone()
    return upper


def append(parent: Node, tokens: tuple[int, ...], rows: torch.Tensor, lineage: Lineage) -> Node:
    """Hang a new leaf under ``parent``. Mutates the tree."""
    assert tokens[0] not in parent.children
    leaf, counted = Node(parent, tokens, rows, lineage), _counted(parent)
    # a leaf stood for the branch that now goes on
    _set_branches(parent, parent.branches + (not parent.is_leaf))
    parent.children[tokens[0]] = leaf
    _pass_on(parent, _counted(parent) - counted)
    return leaf


def remove_leaf(leaf: Node) -> None:
    """Take a leaf off the tree. Mutates the tree; the leaf's rows and checkpoint are the caller's."""
    assert leaf.is_leaf
    assert leaf.parent is not None
    parent, counted = leaf.parent, _counted(leaf.parent)
    del parent.children[leaf.tokens[0]]
    _set_branches(parent, 1 if parent.is_leaf else parent.branches - _counted(leaf))
    _pass_on(parent, _counted(parent) - counted)


def put_state(node: Node, checkpoint: Checkpoint) -> None:
    """Put a checkpoint at a node's end. O(nodes up and down to the next ones). Mutates the tree."""
    assert node.checkpoint is None
    counted, node.checkpoint = _counted(node), checkpoint
    checkpoint.saved, checkpoint.branches = node.saved, node.branches
    _pass_on(node, _counted(node) - counted)
    _save_below(node)


def take_state(node: Node) -> None:
    """Take a node's checkpoint off the tree. O(nodes up and down to the next ones). Mutates the tree."""
    counted, node.checkpoint = _counted(node), None
    _pass_on(node, _counted(node) - counted)
    _save_below(node)


def count_hit(node: Node, checkpoint: Checkpoint) -> None:
    """Note that a sequence resumed from a node's checkpoint. O(nodes up to the next one). Mutates the tree."""
    counted = _counted(node)
    checkpoint.hits += 1
    _pass_on(node, _counted(node) - counted)


def descendants(root: Node) -> Iterator[Node]:
    """Every node below ``root``, parents first."""
    pending = list(root.children.values())
    while pending:
        node = pending.pop()
        yield node
        pending.extend(node.children.values())


def _saved(node: Node) -> int:
    """Tokens between the next checkpoint above a node and its end."""
    above = node.parent
    return len(node.tokens) + (0 if above is None or above.checkpoint is not None else above.saved)


def _counted(node: Node) -> int:
    """Branches for which a node counts with those above it: what has a checkpoint resumes there, and for none.

    But the end of a reply that no prompt has repeated yet is unproven. Where templates write replies otherwise than
    they were generated, none ever will: the next turn resumes above.
    """
    if node.checkpoint is None:
        return node.branches
    return int(node.is_leaf and not node.checkpoint.hits)


def _set_branches(node: Node, branches: int) -> None:
    node.branches = branches
    if node.checkpoint is not None:
        node.checkpoint.branches = branches


def _pass_on(node: Node, more: int) -> None:
    """Tell those above that a node counts for so many more branches."""
    above = node.parent
    while more and above is not None:
        _set_branches(above, above.branches + more)
        # and the node above this one never sees them
        above = above.parent if above.checkpoint is None else None


def _save_below(node: Node) -> None:
    """Tell those below that a checkpoint came to a node's end, or left it."""
    # a conversation may be thousands of nodes deep
    rest = list(node.children.values())
    while rest:
        below = rest.pop()
        below.saved = _saved(below)
        if below.checkpoint is None:
            rest.extend(below.children.values())
        else:
            below.checkpoint.saved = below.saved


def _common_prefix(edge: tuple[int, ...], tokens: Sequence[int], start: int) -> int:
    end = min(len(edge), len(tokens) - start)
    # equal edges are the common case, and comparing slices is far faster than a loop
    if tuple(tokens[start : start + end]) == edge[:end]:
        return end
    return next(i for i in range(end) if edge[i] != tokens[start + i])
