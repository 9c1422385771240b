"""Random histories of chunks, exactly as the naive twin has them; with packed slots, still sound."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdover.chunks import ChunkEntry
from holdover.errors import CapacityError, OwnershipError
from tests.chunks.naive_store import NaiveChunkStore, Name
from tests.chunks.world import A, B, World

# few tokens, so that chunks meet
NAMES = st.builds(Name, st.sampled_from([A, A, B]), st.lists(st.integers(0, 1), min_size=1, max_size=4).map(tuple))
WHICH = st.integers(0, 5)
REFUSALS = (CapacityError, OwnershipError)


class Histories(RuleBasedStateMachine):
    """The twin does everything first; where it refuses, the store must refuse in the same way."""

    packed = 0
    world: World

    @initialize(slots=st.integers(1, 5), rows=st.integers(1, 16), limit=st.integers(1, 16), inputs=st.integers(1, 16))
    def start(self, slots, rows, limit, inputs):
        self.world = World(slots, rows, max_rows=limit, max_inputs=inputs, packed=self.packed)
        self.twin: NaiveChunkStore | None = NaiveChunkStore(slots, rows, limit, inputs)
        if self.packed:
            self.twin = None

    def both(self, ours: Any, theirs: str, *arguments: Any) -> Any:
        """Do it on both sides; None where it was refused."""
        if self.twin is None:
            try:
                return ours()
            except REFUSALS:
                return None
        try:
            wanted = getattr(self.twin, theirs)(*arguments)
        except REFUSALS as error:
            with pytest.raises(type(error)):
                ours()
            return None
        got = ours()
        assert wanted is None or got == wanted
        return got

    def pick(self, things: Any, which: int) -> Any:
        return list(things)[which % len(things)]

    def name(self, entry: ChunkEntry) -> Name:
        return Name(self.world._namespaces[id(entry)], entry.tokens)

    @rule(name=NAMES)
    def begin(self, name):
        self.both(lambda: self.world.begin(name.tokens, name.namespace), "begin", name)

    @precondition(lambda self: self.world.prefills)
    @rule(which=WHICH, finish=st.sampled_from([True, True, False]))
    def end(self, which, finish):
        prefill = self.pick(self.world.prefills, which)
        verb = "finish" if finish else "abandon"
        self.both(lambda: getattr(self.world, verb)(prefill), verb, Name(prefill.namespace, prefill.build.tokens))

    @precondition(lambda self: self.world.store.entries)
    @rule(which=st.lists(WHICH, min_size=1, max_size=3))
    def hold(self, which):
        entries = [self.pick(self.world.store.entries.values(), i) for i in which]
        self.both(lambda: self.world.hold(*entries), "hold", tuple(map(self.name, entries)))

    @precondition(lambda self: self.world.holds)
    @rule(which=WHICH)
    def release(self, which):
        hold = self.pick(self.world.holds, which)
        self.both(lambda: self.world.release(hold), "release", tuple(map(self.name, hold.entries)))

    @precondition(lambda self: self.world.store.entries)
    @rule(which=WHICH)
    def remove(self, which):
        entry = self.pick(self.world.store.entries.values(), which)
        self.both(lambda: self.world.store.remove(entry), "remove", self.name(entry))

    @rule()
    def acquire(self):
        self.both(self.world.acquire, "acquire")

    @precondition(lambda self: self.world.live)
    @rule()
    def give_back(self):
        self.world.live.pop().release()
        if self.twin is not None:
            self.twin.live -= 1

    @rule(rows=st.integers(0, 6))
    def reclaim(self, rows):
        self.both(lambda: self.world.store.reclaim(rows), "reclaim", rows)

    @rule()
    def flush(self):
        self.both(self.world.store.flush, "flush")

    @rule()
    def maintain(self):
        self.world.tiers.maintain()
        self.world.tiers.finish()

    @invariant()
    def sound(self):
        if hasattr(self, "world"):
            self.world.check()
            if self.twin is not None:
                assert self.world.kept() == self.twin.kept
                assert self.world.store.rows == self.twin.owned

    def teardown(self):
        if hasattr(self, "world"):
            self.world.check_empty()


class Packed(Histories):
    packed = 2


TestDense, TestPacked = Histories.TestCase, Packed.TestCase
# every step checks every byte: half as many histories as elsewhere
TestDense.settings = TestPacked.settings = settings(max_examples=settings.default.max_examples // 2)
