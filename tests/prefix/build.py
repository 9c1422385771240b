"""A world of sequences that run on a prefix cache as an engine would, with a model of small integers.

Every state and every KV row says exactly which tokens of which namespace it has seen, so whatever arrives at the wrong
place is noticed. Freed slots and rows are NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from holdover.arch.layout import KVLayout, StateLayout
from holdover.prefix import Opened, PrefixCache, check_integrity, tree
from holdover.state import SlotPool
from holdover.store import KVPool, LeaseState, SlotAllocator
from tests.state import build as states
from tests.state.build import advance, assert_state_of
from tests.store import build as rows_of_kv
from tests.store.build import assert_rows_of, write_rows

A, B = b"tenant a", b"tenant b"
_SALT = {A: 0, B: 500}


class Running:
    """A running sequence, and what an engine knows of it.

    Attributes:
        namespace: its namespace.
        tokens: tokens that it has run, the resumed ones included.
        rows: the row of each.
        pending: tokens of its prompt that it has not run.
    """

    def __init__(self, namespace: bytes, prompt: Sequence[int], opened: Opened) -> None:
        self.namespace = namespace
        self.hold, self.lease, self.match = opened
        self.tokens = list(prompt[: self.hold.depth])
        self.pending = list(prompt[self.hold.depth :])
        self.rows = self.hold.rows()

    @property
    def owned(self) -> int:
        """KV rows that it owns itself."""
        return len(self.rows) - self.hold.depth


class World:
    """Pools with poison on, a cache over them, and the sequences that run."""

    def __init__(
        self, slots: int = 8, rows: int = 200, state: StateLayout = states.ONE, kv: KVLayout = rows_of_kv.ONE
    ) -> None:
        self.pool = SlotPool(state, slots)
        self.kv = KVPool(kv, rows, poison=True)
        self.slots = SlotAllocator(self.pool, poison=True)
        self.cache = PrefixCache(self.slots, self.kv)
        self.running: list[Running] = []

    def open(self, prompt: Sequence[int], namespace: bytes = A, *, reuse: bool = True) -> Running:
        sequence = Running(namespace, prompt, self.cache.open(namespace, prompt, reuse=reuse))
        self.running.append(sequence)
        self.check_sequence(sequence)
        return sequence

    def run(self, sequence: Running, tokens: Sequence[int] | None = None) -> None:
        """Run ``tokens``, or as many of the prompt as are left; all that is left by default."""
        if tokens is None:
            tokens = sequence.pending
        ahead = sequence.pending[: len(tokens)]
        tokens = ahead or list(tokens)
        fresh = self.cache.allocate_rows(len(tokens))
        del sequence.pending[: len(ahead)]
        sequence.tokens += tokens
        sequence.rows = torch.cat([sequence.rows, fresh])
        write_rows(self.kv, fresh, sequence.tokens, _SALT[sequence.namespace])
        advance(self.pool, sequence.lease.slot, tokens, _SALT[sequence.namespace])

    def checkpoint(self, sequence: Running) -> None:
        """Publish a copy of the state in mid-run."""
        lease = self.cache.acquire_slot(LeaseState.CACHED)
        try:
            self.pool.copy(sequence.lease.slot, lease.slot)
            sequence.rows = self.cache.publish(sequence.hold, sequence.tokens, sequence.rows, lease)
        except BaseException:
            lease.release()
            raise

    def publish_rows(self, sequence: Running) -> None:
        """Publish the rows without a state."""
        sequence.rows = self.cache.publish(sequence.hold, sequence.tokens, sequence.rows, None)

    def donate(self, sequence: Running) -> None:
        """End a sequence; its own slot becomes the checkpoint."""
        lease = sequence.lease.move(LeaseState.CACHED)
        try:
            self.cache.publish(sequence.hold, sequence.tokens, sequence.rows, lease)
        except BaseException:
            sequence.lease = lease.move(LeaseState.LIVE)
            raise
        self.cache.release(sequence.hold)
        self.running.remove(sequence)

    def abort(self, sequence: Running) -> None:
        """End a sequence; what it did not publish is lost."""
        sequence.lease.release()
        self.kv.free(sequence.rows[sequence.hold.depth :])
        self.cache.release(sequence.hold)
        self.running.remove(sequence)

    def flush(self) -> int:
        return self.cache.flush()

    def serve(self, prompt: Sequence[int], namespace: bytes = A, *, stops: Sequence[int] = ()) -> None:
        """A whole request with checkpoints at the depths ``stops`` that it comes through, donated at its end."""
        sequence = self.open(prompt, namespace)
        for depth in sorted({*(stop for stop in stops if stop < len(prompt)), len(prompt)}):
            if depth > len(sequence.tokens):
                self.run(sequence, prompt[len(sequence.tokens) : depth])
                if depth < len(prompt):
                    self.checkpoint(sequence)
        self.donate(sequence)

    def depths(self, prompt: Sequence[int], namespace: bytes = A) -> tuple[int, int]:
        """State and KV depth of a lookup."""
        match = self.cache.match(namespace, prompt)
        return match.state_depth, match.kv_depth

    def states(self) -> list[tuple[bytes, tuple[int, ...]]]:
        """Checkpoints present, least recently used first."""
        return [_prefix(node) for node in self.cache.state_order]

    def rows(self) -> Iterator[tuple[bytes, tuple[int, ...]]]:
        """Prefixes whose last token's row the tree holds."""
        for root in self.cache.roots.values():
            for node in tree.descendants(root):
                namespace, tokens = _prefix(node)
                yield from ((namespace, tokens[: node.depth - i]) for i in range(len(node.tokens)))

    def node(self, prompt: Sequence[int], namespace: bytes = A) -> tree.Node:
        """The node that ends exactly at ``prompt``."""
        node = tree.walk(self.cache.roots[namespace], prompt).nodes[-1]
        assert node.depth == len(prompt)
        return node

    def check(self) -> None:
        """Fail unless every pool balances, and every state and row anywhere is that of its own tokens."""
        holds = [sequence.hold for sequence in self.running]
        owned = sum(sequence.owned for sequence in self.running)
        check_integrity(self.cache, holds, owned_rows=owned, live_slots=len(self.running))
        for sequence in self.running:
            self.check_sequence(sequence)
        for root in self.cache.roots.values():
            for node in tree.descendants(root):
                _, tokens = _prefix(node)
                assert_rows_of(self.kv, node.rows, tokens, _SALT[root.namespace])
                if node.checkpoint is not None:
                    assert_state_of(self.pool, node.checkpoint.slot, tokens, _SALT[root.namespace])

    def check_sequence(self, sequence: Running) -> None:
        assert_state_of(self.pool, sequence.lease.slot, sequence.tokens, _SALT[sequence.namespace])
        assert_rows_of(self.kv, sequence.rows, sequence.tokens, _SALT[sequence.namespace])
        assert len(sequence.rows) == len(sequence.tokens) >= sequence.hold.depth

    def check_empty(self) -> None:
        """Fail unless, with no sequence left, a flush gives everything back."""
        assert not self.running
        self.flush()
        self.check()
        assert not self.cache.roots
        assert self.slots.num_free == self.pool.num_slots
        assert self.kv.num_free == self.kv.num_rows


def _prefix(node: tree.Node) -> tuple[bytes, tuple[int, ...]]:
    root, *nodes = node.path()
    assert isinstance(root, tree.Root)
    return root.namespace, tuple(token for node in nodes for token in node.tokens)
