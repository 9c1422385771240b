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


def _is_unproven(node: Node, checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is the end of a reply that no prompt has repeated yet.

    Where templates write replies otherwise than they were generated, none ever will: the next turn resumes above.
    """
    return node.is_leaf and not checkpoint.hits


def _leaves(node: Node) -> int:
    """Leaves below a node, or it itself, that have no checkpoint nearer, or none but an unproven one."""
    found, rest = 0, [node]
    # a conversation may be thousands of nodes deep
    while rest:
        top = rest.pop()
        found += top.is_leaf
        for child in top.children.values():
            if child.checkpoint is None:
                rest.append(child)
            else:
                found += _is_unproven(child, child.checkpoint)
    return found
