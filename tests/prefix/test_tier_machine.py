"""Random histories over two tiers, with movers that end when they like and everything failing once in a while.

What a sequence's state must be is said by its lineage alone: exact, it is what an uncached run gives; after k lossy
restores, retained units still are (up to their encoding), and omitted ones are what a run from zero gives since the
last of them. `World` follows the depths of those restores and recomputes every state and row from its definition.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import get_args

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdover.errors import CapacityError, RequestError
from holdover.prefix import tree
from holdover.prefix.eviction import Eviction
from holdover.store import TierOptions
from tests.prefix.build import A, B, Running, World
from tests.prefix.test_injection import failing
from tests.state import build as states
from tests.store.tier_build import Delayed, half, whole

# few tokens and short prompts, so that prefixes meet
TOKENS = st.integers(0, 1)
TAILS = st.lists(TOKENS, min_size=1, max_size=3)
WHICH = st.integers(0, 3)
LOSSES = st.sampled_from([None, None, 0, 1, 2])
CODECS = [half(states.ONE), half(states.MIXED), half(states.ONE, "int8"), whole(states.ONE, "int8"), whole(states.ONE)]


class Injected(RuntimeError):
    """A failure that the test brought about."""


class Histories(RuleBasedStateMachine):
    world: World

    @initialize(
        slots=st.integers(1, 5),
        packed=st.integers(0, 3),
        rows=st.integers(12, 60),
        codec=st.sampled_from(CODECS),
        delayed=st.booleans(),
        spill=st.booleans(),
        watermark=st.integers(0, 2),
        eviction=st.sampled_from(get_args(Eviction)),
    )
    def start(self, slots, packed, rows, codec, delayed, spill, watermark, eviction):
        self.mover = Delayed() if delayed else None
        self.pinned: set[tuple[bytes, tuple[int, ...]]] = set()
        self.world = World(
            slots,
            rows,
            codec.layout,
            packed=packed,
            codec=codec,
            mover=self.mover,
            options=TierOptions(spill, watermark),
            eviction=eviction,
        )

    def pick(self, which: int) -> Running:
        return self.world.running[which % len(self.world.running)]

    @contextmanager
    def attempt(self, may_end=None):
        """What is done in it may lack room or be made to fail; either keeps the sequences and their depths.

        A sequence whose state was packed before the failure, in its only place, may end.
        """
        before = [(s, len(s.tokens), s.hold.depth, s.hold.lineage) for s in self.world.running]
        try:
            yield
        except (CapacityError, Injected):
            running = self.world.running
            before = [kept for kept in before if kept[0] in running or kept[0] is not may_end]
            assert [(s, len(s.tokens), s.hold.depth, s.hold.lineage) for s in running] == before

    @contextmanager
    def fault(self, at: int | None):
        """Fail the call number ``at`` of those that can fail."""
        with failing(at, None if at is None else Injected()):
            yield

    faults = st.sampled_from([None] * 16 + [*range(8)])

    def prompt(self, which, tail):
        """A prompt that goes on where a cached state ends, or one of its own."""
        states = [(A, ()), *self.world.states(), (B, ())]
        namespace, tokens = states[which % len(states)]
        return namespace, [*tokens, *tail][:12]

    @rule(which=st.integers(0, 9), tail=TAILS, most=LOSSES, at=faults)
    def open(self, which, tail, most, at):
        namespace, prompt = self.prompt(which, tail)
        promised = self.world.cache.match(namespace, prompt, max_losses=most).state_depth
        assert promised == self.deepest(namespace, prompt, most)
        with self.attempt(), self.fault(at):
            sequence = self.world.open(prompt, namespace, max_losses=most)
            assert most is None or len(sequence.past) <= sequence.hold.lineage.losses <= most
            assert len(sequence.tokens) == promised

    @rule(which=st.integers(0, 9), tail=TAILS, most=LOSSES, dense=st.booleans())
    def serve(self, which, tail, most, dense):
        """A whole request at once."""
        namespace, prompt = self.prompt(which, tail)
        with self.attempt():
            sequence = self.world.open(prompt, namespace, max_losses=most)
            try:
                self.world.run(sequence)
                with self.no_worse(sequence):
                    self.world.donate(sequence, dense=dense)
            finally:
                if sequence in self.world.running:
                    self.world.abort(sequence)

    @precondition(lambda self: self.world.running)
    @rule(which=WHICH, tokens=st.lists(TOKENS, min_size=1, max_size=3), dense=st.booleans(), at=faults)
    def go_on(self, which, tokens, dense, at):
        """Run some tokens, and keep their state."""
        sequence = self.pick(which)
        with self.attempt():
            self.world.run(sequence, tokens)
        if sequence.tokens:
            with self.no_worse(sequence), self.attempt(), self.fault(at):
                self.world.checkpoint(sequence, dense=dense)

    @precondition(lambda self: self.world.running)
    @rule(which=WHICH, how=st.sampled_from(["donate", "donate", "abort", "publish"]), dense=st.booleans(), at=faults)
    def end(self, which, how, dense, at):
        """Give all to the cache, or nothing, or the rows alone, and go on."""
        sequence = self.pick(which)
        if how == "abort" or not sequence.tokens:
            self.world.abort(sequence)
        elif how == "publish":
            with self.no_worse(sequence):
                self.world.publish_rows(sequence)
        else:
            # what is packed at once has no other place to go back to
            may_end = None if self.world.tiers.options.dense_spill else sequence
            with self.no_worse(sequence), self.attempt(may_end), self.fault(at):
                self.world.donate(sequence, dense=dense)

    @rule(at=faults, which=WHICH, job=st.sampled_from(["ends", "ends", "fails", "waits"]))
    def maintain(self, at, which, job):
        """Jobs end in any order, well or not, which is noticed only when somebody looks."""
        if job != "waits" and self.mover is not None and self.mover.jobs:
            self.mover.jobs[-1 - which % len(self.mover.jobs)].run(Injected() if job == "fails" else None)
        with self.attempt(), self.fault(at):
            self.world.tiers.maintain()

    @rule(which=st.integers(0, 9), at=faults)
    def pin(self, which, at):
        states = self.world.states()
        if states:
            prefix = states[which % len(states)]
            with suppress(RequestError), self.attempt(), self.fault(at):
                assert self.world.pin(*prefix)
                self.pinned |= {prefix}

    @precondition(lambda self: self.pinned)
    @rule(which=WHICH)
    def unpin(self, which):
        prefix = sorted(self.pinned)[which % len(self.pinned)]
        self.pinned.remove(prefix)
        self.world.unpin(*prefix)

    @rule(when=st.integers(0, 9))
    def flush(self, when):
        # seldom: histories need something to happen in
        if when == 9:
            self.world.flush()

    def deepest(self, namespace, prompt, most):
        """Where a lookup must resume: a state above the last token, of which nothing below it has too many losses."""
        depths = [0]
        for node in self.nodes_of(namespace, prompt):
            if node.checkpoint is not None and node.depth < len(prompt):
                past = len(self.world.past(node.checkpoint))
                past += node.checkpoint.tier == "compressed" and not self.world.tiers.codec.is_lossless
                losses = max([past, *(above.lineage.losses for above in node.path())])
                depths += [node.depth] if most is None or losses <= most else []
        return max(depths)

    def nodes_of(self, namespace, tokens):
        root = self.world.cache.roots.get(namespace)
        return tree.walk(root, tokens).nodes if root is not None else []

    @contextmanager
    def no_worse(self, sequence):
        """Exact replaces approximate at the same key, rows and state, and never the reverse."""

        def rows():
            return {n.depth - i: n.lineage for n in self.nodes_of(*key) for i in range(len(n.tokens))}

        def state():
            return next((n.checkpoint for n in self.nodes_of(*key) if n.depth == len(key[1])), None)

        def moves():
            return [self.world.tiers.counters[name] for name in ("states_evicted", "demotions")]

        key = sequence.namespace, list(sequence.tokens)
        older, before, counted = state(), rows(), moves()
        restored = older.restored if older is not None else None
        yield
        assert not any(before[depth].is_better(lineage) for depth, lineage in rows().items() if depth in before)
        newer = state()
        # what pressure took away is no replacement
        if older is not None and newer is not older and moves() == counted:
            assert newer is not None
            assert newer.restored.is_better(restored)

    @invariant()
    def sound(self):
        if hasattr(self, "world"):
            self.world.check()
            assert self.pinned <= set(self.world.states())

    def teardown(self):
        if hasattr(self, "world"):
            for sequence in list(self.world.running):
                self.world.abort(sequence)
            for prefix in self.pinned:
                self.world.unpin(*prefix)
            self.world.check_empty()


TestHistories = Histories.TestCase
TestHistories.settings = settings(deadline=None, max_examples=80, stateful_step_count=40)
