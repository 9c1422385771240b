"""A world of sequences that run on a prefix cache as an engine would, with a model of small integers.

Every state and every KV row says exactly which tokens of which namespace it has seen, so whatever arrives at the wrong
place is noticed. Freed slots and rows are NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from holdover.arch.layout import KVLayout, StateLayout
from holdover.codec import Codec
from holdover.prefix import Opened, PrefixCache, check_integrity, tree
from holdover.prefix.eviction import Eviction
from holdover.state import KeyChain, Lineage, SlotPool
from holdover.state.key import chain_of
from holdover.store import Checkpoint, KVPool, PackedPool, SlotAllocator, StateTiers, TierOptions
from holdover.store.mover import Mover
from tests.prefix.recounting import ORDERS, Recounting
from tests.state import build as states
from tests.state.build import advance
from tests.store import build as rows_of_kv
from tests.store.build import assert_rows_of, write_rows
from tests.store.tier_build import assert_holds, assert_lossy_state_of

A, B = b"tenant a", b"tenant b"
_SALT = {A: 0, B: 500}
# rows that a sequence computes from a lossy state are its own kind: they must not be taken for exact ones
_LOSS = 1000


class Running:
    """A running sequence, and what an engine knows of it.

    Attributes:
        namespace: its namespace.
        tokens: tokens that it has run, the resumed ones included.
        rows: the row of each.
        pending: tokens of its prompt that it has not run.
        past: depths at which its state was restored lossily, ascending.
    """

    def __init__(self, namespace: bytes, prompt: Sequence[int], opened: Opened, past: tuple[int, ...] = ()) -> None:
        self.namespace = namespace
        self.past = past
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
        self,
        slots: int = 8,
        rows: int = 200,
        state: StateLayout = states.ONE,
        kv: KVLayout = rows_of_kv.ONE,
        *,
        packed: int | None = None,
        codec: Codec | None = None,
        mover: Mover | None = None,
        options: TierOptions | None = None,
        eviction: Eviction = "lru",
    ) -> None:
        self.pool = SlotPool(state, slots)
        self.kv = KVPool(kv, rows, poison=True)
        self.slots = SlotAllocator(self.pool, poison=True)
        self.packed = None
        if packed is not None:
            self.packed = SlotAllocator(PackedPool(codec or Codec(state), packed), "compressed", poison=True)
        order = ORDERS[eviction]()
        self.tiers = StateTiers(self.slots, self.packed, mover, options, order)
        self.cache = PrefixCache(self.tiers, self.kv)
        if isinstance(order, Recounting):
            order.roots = self.cache.roots
        self.running: list[Running] = []
        # every checkpoint ever made, with the past of its bytes
        self._pasts: dict[int, tuple[Checkpoint, tuple[int, ...]]] = {}

    def open(
        self, prompt: Sequence[int], namespace: bytes = A, *, reuse: bool = True, max_losses: int | None = None
    ) -> Running:
        present = {node: node.checkpoint for node in self.nodes()}
        opened = self.cache.open(namespace, prompt, reuse=reuse, max_losses=max_losses)
        node = opened.match.node
        past = () if node is None else self.past(present[node])
        if opened.match.tier == "compressed" and not self.tiers.codec.is_lossless:
            past = (*past, opened.match.state_depth)
        sequence = Running(namespace, prompt, opened, past)
        self.running.append(sequence)
        self.check_sequence(sequence)
        return sequence

    def run(self, sequence: Running, tokens: Sequence[int] | None = None) -> None:
        """Run ``tokens``, or as many of the prompt as are left; all that is left by default."""
        if tokens is None:
            tokens = sequence.pending
        ahead = sequence.pending[: len(tokens)]
        tokens = ahead or list(tokens)
        fresh = self.cache.rows.allocate(len(tokens))
        del sequence.pending[: len(ahead)]
        sequence.tokens += tokens
        sequence.rows = torch.cat([sequence.rows, fresh])
        write_rows(self.kv, fresh, sequence.tokens, salt_of(sequence.namespace, sequence.hold.lineage))
        advance(self.pool, sequence.lease.slot, tokens, _SALT[sequence.namespace])

    def checkpoint(self, sequence: Running, *, dense: bool = False) -> None:
        """Publish a copy of the state in mid-run."""
        checkpoint = self.tiers.snapshot(sequence.lease.slot, dense=dense)
        self._pasts[id(checkpoint)] = checkpoint, sequence.past
        try:
            sequence.rows = self.cache.publish(sequence.hold, sequence.tokens, sequence.rows, checkpoint, dense=dense)
        except BaseException:
            self.tiers.abandon(checkpoint)
            raise

    def publish_rows(self, sequence: Running) -> None:
        """Publish the rows without a state."""
        sequence.rows = self.cache.publish(sequence.hold, sequence.tokens, sequence.rows, None)

    def donate(self, sequence: Running, *, dense: bool = False) -> None:
        """End a sequence; its own slot becomes the checkpoint."""
        checkpoint = self.tiers.donate(sequence.lease)
        self._pasts[id(checkpoint)] = checkpoint, sequence.past
        try:
            self.cache.publish(sequence.hold, sequence.tokens, sequence.rows, checkpoint, dense=dense)
        except BaseException:
            if checkpoint.tier == "native":
                sequence.lease = checkpoint.surrender()
            else:
                # packed at once: there is no live state to go back to
                self.tiers.abandon(checkpoint)
                self._end(sequence)
            raise
        self.cache.release(sequence.hold)
        self.running.remove(sequence)

    def abort(self, sequence: Running) -> None:
        """End a sequence; what it did not publish is lost."""
        sequence.lease.release()
        self._end(sequence)

    def _end(self, sequence: Running) -> None:
        self.kv.free(sequence.rows[sequence.hold.depth :])
        self.cache.release(sequence.hold)
        self.running.remove(sequence)

    def pin(self, namespace: bytes, tokens: Sequence[int]) -> bool:
        """Whether a prefix is pinned from now on."""
        return self.cache.pins.add(namespace, tokens) is not None

    def unpin(self, namespace: bytes, tokens: Sequence[int]) -> None:
        assert self.cache.pins.remove(chain_of(namespace, tokens).key())

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
        owners = {id(node.checkpoint): node for node in self.nodes() if node.checkpoint is not None}
        return [_prefix(owners[id(checkpoint)]) for checkpoint in self.tiers.order]

    def rows(self) -> Iterator[tuple[bytes, tuple[int, ...]]]:
        """Prefixes whose last token's row the tree holds."""
        for node in self.nodes():
            namespace, tokens = _prefix(node)
            yield from ((namespace, tokens[: node.depth - i]) for i in range(len(node.tokens)))

    def nodes(self) -> list[tree.Node]:
        """Every node of the tree but the roots."""
        return [node for root in self.cache.roots.values() for node in tree.descendants(root)]

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
            assert self.pool.header(sequence.lease.slot).lineage == sequence.hold.lineage
        for node in self.nodes():
            self._check_node(node)

    def _check_node(self, node: tree.Node) -> None:
        namespace, tokens = _prefix(node)
        self._check_rows(node, namespace, tokens)
        if node.checkpoint is not None:
            chain, past = KeyChain(namespace), self.past(node.checkpoint)
            chain.extend(tokens)
            assert_holds(self.tiers, node.checkpoint, tokens, past, chain=chain, salt=_SALT[namespace])
            losses = len(past) + (node.checkpoint.tier == "compressed" and not self.tiers.codec.is_lossless)
            assert node.checkpoint.restored == (Lineage("nr", losses) if losses else Lineage())

    def _check_rows(self, node: tree.Node, namespace: bytes, tokens: Sequence[int]) -> None:
        assert_rows_of(self.kv, node.rows, tokens, salt_of(namespace, node.lineage))

    def check_sequence(self, sequence: Running) -> None:
        tokens, salt, codec = sequence.tokens, _SALT[sequence.namespace], self.tiers.codec
        assert_lossy_state_of(self.pool, sequence.lease.slot, tokens, codec, sequence.past, salt)
        # the rows that it computes are no better than its state, nor than the rows below them
        lineage = sequence.hold.lineage
        assert lineage.losses >= len(sequence.past)
        assert lineage.is_exact == (lineage.losses == 0)
        assert not sequence.hold.node.path_lineage().losses > lineage.losses
        start = 0
        for node in sequence.hold.node.path():
            start += len(node.tokens)
            assert torch.equal(sequence.rows[start - len(node.tokens) : start], node.rows)
        assert_rows_of(self.kv, sequence.rows[start:], tokens, salt_of(sequence.namespace, lineage))
        assert len(sequence.rows) == len(tokens) >= sequence.hold.depth == start

    def past(self, checkpoint: Checkpoint) -> tuple[int, ...]:
        """Depths of the lossy restores in the past of a checkpoint's bytes; none if a test made it by hand."""
        return self._pasts.get(id(checkpoint), (checkpoint, ()))[1]

    def check_empty(self) -> None:
        """Fail unless, with no sequence and no pin left, a flush gives everything back."""
        assert not self.running
        assert not self.cache.pins
        self.flush()
        self.check()
        assert not self.cache.roots
        assert self.packed is None or self.packed.num_free == self.packed.pool.num_slots
        assert self.slots.num_free == self.pool.num_slots
        assert self.kv.num_free == self.kv.num_rows


def salt_of(namespace: bytes, lineage: Lineage) -> int:
    return _SALT[namespace] + _LOSS * lineage.losses


def _prefix(node: tree.Node) -> tuple[bytes, tuple[int, ...]]:
    root, *nodes = node.path()
    assert isinstance(root, tree.Root)
    return root.namespace, tuple(token for node in nodes for token in node.tokens)
