"""What a checkpoint is worth where it stands among others."""

from __future__ import annotations

from holdover.prefix.tree import Node
from holdover.store import Checkpoint
from holdover.store.checkpoint import Standing


def standing_of(checkpoint: Checkpoint) -> Standing:
    """Where a checkpoint stands; one that nobody placed saves all of its tokens, for one branch."""
    return Standing(0, 1) if checkpoint.standing is None else checkpoint.standing()


def standing_at(node: Node) -> Standing:
    """Where the checkpoint at a node stands in its tree. O(nodes above it, and below it down to the next ones)."""
    above = node.parent
    while above is not None and above.checkpoint is None:
        above = above.parent
    return Standing(0 if above is None else above.depth, _leaves(node))


def _leaves(node: Node) -> int:
    """Leaves below a node, or it itself, that have no checkpoint nearer."""
    if node.is_leaf:
        return 1
    return sum(_leaves(child) for child in node.children.values() if child.checkpoint is None)
