"""What a running sequence and the tree owe each other: the answer of a lookup, and a claim on a path."""

from __future__ import annotations

from typing import NamedTuple

import torch

from holdover.errors import OwnershipError
from holdover.prefix.tree import Node
from holdover.state import EXACT, Lineage
from holdover.store import ResidentTier, SlotLease


class Match(NamedTuple):
    """Answer of a lookup; valid until the next call that mutates the cache.

    Attributes:
        node: node whose checkpoint can be resumed; None to start from nothing.
        kv_depth: tokens of the prompt whose KV rows are present; never less than ``state_depth``.
        tier: where the checkpoint is.
        lineage: what a sequence that resumes there will be.
        source: shelf that the checkpoint was just brought up from, or None.
    """

    node: Node | None
    kv_depth: int
    tier: ResidentTier | None = None
    lineage: Lineage = EXACT
    source: str | None = None

    @property
    def state_depth(self) -> int:
        """Tokens that the resumed state has seen."""
        return self.node.depth if self.node is not None else 0


class Hold:
    """A running sequence's claim on the path to ``node``: its rows cannot be evicted. Released exactly once.

    Attributes:
        lineage: how the sequence's state, and every row that it computes, come to be.
    """

    __slots__ = ("_node", "lineage")

    def __init__(self, node: Node, lineage: Lineage) -> None:
        self._node: Node | None = node
        self.lineage = lineage
        _lock(node)

    @property
    def node(self) -> Node:
        """End of the path.

        Raises:
            OwnershipError: the hold was released.
        """
        if self._node is None:
            raise OwnershipError("hold used after it was released")
        return self._node

    @property
    def is_held(self) -> bool:
        """Whether the claim still stands."""
        return self._node is not None

    @property
    def depth(self) -> int:
        """Tokens whose rows the tree owns on behalf of this hold."""
        return self.node.depth

    def rows(self) -> torch.Tensor:
        """KV rows of the path, int64 ``[depth]``."""
        return torch.cat([node.rows for node in self.node.path()])

    def move(self, node: Node) -> None:
        """Claim the path to another node instead. Mutates the locks of both paths."""
        _lock(node)
        self.drop()
        self._node = node

    def drop(self) -> None:
        """Give the claim up. Mutates locks.

        Raises:
            OwnershipError: it was released already.
        """
        for other in self.node.path():
            other.locks -= 1
        self._node = None


def _lock(node: Node) -> None:
    for other in node.path():
        other.locks += 1


class Opened(NamedTuple):
    """A sequence's place in the cache, and the live state it starts from.

    Attributes:
        hold: claim on the resumed path; its depth is the state's.
        lease: live slot whose state has seen exactly that many tokens.
        match: what the lookup found.
    """

    hold: Hold
    lease: SlotLease
    match: Match
