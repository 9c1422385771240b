"""Prefixes that stay cached until they are told to go, or the process ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdover.errors import RequestError
from holdover.prefix import tree
from holdover.prefix.hold import Hold
from holdover.prefix.rows import TreeRows
from holdover.prefix.tree import Node
from holdover.state.key import chain_of
from holdover.store import StateTiers
from holdover.store.checkpoint import Checkpoint


@dataclass(frozen=True)
class Pin:
    """A prefix that stays.

    Attributes:
        key: chained hash of its tokens.
        depth: number of its tokens.
    """

    key: bytes
    depth: int


class Pins:
    """Pinned prefixes: their rows are held as a running sequence's are, and their checkpoints are kept.

    A kept checkpoint is not evicted, demoted or replaced; only one whose bytes turn out to be damaged is dropped. Pins
    take at most half of each budget, so that requests always find room. Used by the engine thread only.

    Args:
        rows: rows of the trees.
        tiers: where the checkpoints are.
    """

    def __init__(self, rows: TreeRows, tiers: StateTiers) -> None:
        self._rows = rows
        self._tiers = tiers
        self._holds: dict[Pin, Hold] = {}

    def __len__(self) -> int:
        return len(self._holds)

    def __iter__(self) -> Iterator[Pin]:
        return iter(self._holds)

    @property
    def rows(self) -> dict[Node, int]:
        """The nodes whose rows pins hold, with the number of each one's. O(nodes of all pins)."""
        return {node: len(node.tokens) for hold in self._holds.values() for node in hold.node.path()}

    def holds(self) -> list[Hold]:
        """Claims of all pins on the tree."""
        return list(self._holds.values())

    def add(self, namespace: bytes, tokens: Sequence[int], *, reserved: int = 0) -> Pin | None:
        """Pin a prefix. Mutates locks. O(tokens and rows of all pins); waits for demotions under way.

        Args:
            namespace: model and tenant that the tokens belong to.
            tokens: the prefix. Pinning it twice is as good as once.
            reserved: native slots that are neither for sequences nor for checkpoints.

        Returns:
            The pin, or None if no checkpoint of exactly these tokens is cached.

        Raises:
            RequestError: pins would take more than half of a budget; nothing changed.
        """
        root = self._rows.roots.get(namespace)
        nodes = tree.walk(root, tokens).nodes if root is not None else []
        if not nodes or nodes[-1].depth != len(tokens) or nodes[-1].checkpoint is None:
            return None
        node, checkpoint = nodes[-1], nodes[-1].checkpoint
        pin = Pin(chain_of(namespace, tokens).key(), len(tokens))
        # where it is when nothing moves any more is where it stays
        self._tiers.finish()
        if not checkpoint.is_kept:
            self._check_slots(checkpoint, reserved)
        if pin not in self._holds:
            self._check_rows(node)
            self._holds[pin] = Hold(node, node.path_lineage())
        checkpoint.is_kept = True
        return pin

    def remove(self, key: bytes) -> bool:
        """Let a prefix go like any other; whether it was pinned. Mutates locks.

        Args:
            key: its key, or the first bytes of it.
        """
        pin = next((pin for pin in self._holds if pin.key.startswith(key)), None)
        if pin is None:
            return False
        hold = self._holds.pop(pin)
        if hold.node.checkpoint is not None:
            hold.node.checkpoint.is_kept = False
        root = hold.node.path()[0]
        hold.drop()
        self._rows.prune(root)
        return True

    def clear(self) -> int:
        """Remove all; how many there were."""
        pins = list(self._holds)
        for pin in pins:
            self.remove(pin.key)
        return len(pins)

    def _check_slots(self, checkpoint: Checkpoint, reserved: int) -> None:
        tier = checkpoint.tier
        total = self._tiers.balance(tier).total - (reserved if tier == "native" else 0)
        kept = sum(c.is_kept and c.tier == tier for c in self._tiers.order)
        if kept + 1 > total // 2:
            raise _over_budget(f"{kept} of {total} {tier} state slots are pinned")

    def _check_rows(self, node: Node) -> None:
        pinned = self.rows
        wanted = pinned | {one: len(one.tokens) for one in node.path()}
        total = self._rows.kv.num_rows
        if sum(wanted.values()) > total // 2:
            more = sum(wanted.values()) - sum(pinned.values())
            raise _over_budget(f"{sum(pinned.values())} of {total} KV rows are pinned, and this needs {more} more")


def _over_budget(what: str) -> RequestError:
    return RequestError(
        f"{what}: at most half of a budget can be. Unpin something, or give the server more",
        code="pin_budget_exceeded",
    )
