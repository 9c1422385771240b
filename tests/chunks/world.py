"""A store of chunks over small pools, as an engine would use it, with a model of small integers.

Every state and every row says of which tokens of which namespace it is. Freed slots and rows are NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from holdover.chunks import Build, ChunkEntry, ChunkOptions, ChunkStore, Extras, Hold, check_integrity
from holdover.codec import Codec
from holdover.state import SlotPool
from holdover.store import KVPool, LeaseState, PackedPool, SlotAllocator, SlotLease, StateTiers
from tests.state import build as states
from tests.state.build import advance
from tests.store import build as kvs
from tests.store.build import assert_rows_of, write_rows
from tests.store.tier_build import assert_holds

A, B = b"tenant a", b"tenant b"
_SALT = {A: 0, B: 500}
INPUTS = ChunkOptions(inputs=True)
# bytes that one token's conv inputs take
INPUT_BYTES = states.ONE.layers[0].conv_channels * 4


@dataclass(eq=False)
class Prefill:
    """A build under way, and the live slot that it runs in."""

    namespace: bytes
    build: Build
    lease: SlotLease


class World:
    def __init__(
        self,
        slots: int = 6,
        rows: int = 40,
        *,
        max_rows: int = 30,
        max_inputs: int = 1000,
        packed: int = 0,
        options: ChunkOptions = INPUTS,
        allocate: Callable[[int], torch.Tensor] | None = None,
    ) -> None:
        self.pool = SlotPool(states.ONE, slots)
        self.kv = KVPool(kvs.ONE, rows, poison=True)
        records = SlotAllocator(PackedPool(Codec(states.ONE), packed), "compressed", poison=True) if packed else None
        self.tiers = StateTiers(SlotAllocator(self.pool, poison=True), records)
        self.store = ChunkStore(
            self.tiers,
            self.kv,
            options,
            max_rows=max_rows,
            max_extra_bytes=max_inputs * INPUT_BYTES,
            allocate=allocate,
        )
        self.prefills: list[Prefill] = []
        self.holds: list[Hold] = []
        self.live: list[SlotLease] = []
        self._namespaces: dict[int, bytes] = {}

    def begin(self, tokens: Sequence[int], namespace: bytes = A) -> Prefill:
        build = self.store.begin(namespace, tokens)
        try:
            lease = self.tiers.acquire(LeaseState.LIVE)
        except BaseException:
            self.store.abandon(build)
            raise
        self.pool.reset(lease.slot, build.namespace)
        self.prefills.append(Prefill(namespace, build, lease))
        return self.prefills[-1]

    def run(self, prefill: Prefill) -> Extras:
        tokens, salt = prefill.build.tokens, _SALT[prefill.namespace]
        advance(self.pool, prefill.lease.slot, tokens, salt)
        write_rows(self.kv, prefill.build.rows, tokens, salt)
        inputs = torch.tensor(tokens, dtype=torch.float32)[:, None].expand(-1, INPUT_BYTES // 4).clone()
        return Extras(inputs={0: inputs} if self.store.options.inputs else {})

    def finish(self, prefill: Prefill) -> ChunkEntry:
        entry = self.store.finish(prefill.build, prefill.lease, self.run(prefill))
        self._namespaces[id(entry)] = prefill.namespace
        self.prefills.remove(prefill)
        return entry

    def abandon(self, prefill: Prefill) -> None:
        self.store.abandon(prefill.build)
        prefill.lease.release()
        self.prefills.remove(prefill)

    def add(self, tokens: Sequence[int], namespace: bytes = A) -> ChunkEntry:
        return self.finish(self.begin(tokens, namespace))

    def hold(self, *entries: ChunkEntry) -> Hold:
        self.holds.append(self.store.hold(entries))
        return self.holds[-1]

    def release(self, hold: Hold) -> None:
        self.store.release(hold)
        self.holds.remove(hold)

    def acquire(self) -> None:
        self.live.append(self.tiers.acquire(LeaseState.LIVE))

    def kept(self) -> list[tuple[bytes, tuple[int, ...]]]:
        """Chunks that are kept, least recently used first."""
        return [(self._namespaces[id(entry)], entry.tokens) for entry in self.store.order]

    def check(self) -> None:
        """Fail unless every pool balances, and every state and row is that of its own chunk."""
        check_integrity(self.store, self.holds)
        self.kv.check_integrity()
        self.tiers.native.check_integrity()
        assert self.kv.num_free + self.store.rows == self.kv.num_rows
        assert self.tiers.native.count(LeaseState.LIVE) == len(self.prefills) + len(self.live)
        assert len(self.tiers.order) == len(self.store.entries)
        for entry in self.store.entries.values():
            namespace = self._namespaces[id(entry)]
            salt = _SALT[namespace]
            assert_rows_of(self.kv, entry.rows, entry.tokens, salt)
            assert_holds(self.tiers, entry.checkpoint, entry.tokens, chain=entry.chain, salt=salt)
            assert self.store.find(namespace, entry.tokens) is entry
            if self.store.options.inputs:
                assert entry.extras.inputs[0][:, 0].tolist() == list(entry.tokens)

    def check_empty(self) -> None:
        """Fail unless, once everybody has let go, a flush gives everything back."""
        for prefill in list(self.prefills):
            self.abandon(prefill)
        for hold in list(self.holds):
            self.release(hold)
        while self.live:
            self.live.pop().release()
        self.store.flush()
        self.check()
        assert not self.store.entries
        assert self.store.rows == self.store.extra_bytes == 0
        assert self.tiers.native.num_free == self.pool.num_slots
        assert self.tiers.packed is None or self.tiers.packed.num_free == self.tiers.packed.pool.num_slots
