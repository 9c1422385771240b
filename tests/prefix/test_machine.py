"""Random histories of requests: with room for all rows, exactly the naive twin's; without, still sound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, get_args

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdover.errors import CapacityError, RequestError
from holdover.prefix.eviction import Eviction
from holdover.prefix.naive import NaiveHold, NaivePrefixCache
from tests.prefix.build import A, B, Running, World

# few tokens and short prompts, so that prefixes meet
TOKENS = st.integers(0, 1)
PROMPTS = st.lists(TOKENS, max_size=6)
NAMESPACES = st.sampled_from([A, A, B])
WHICH = st.integers(0, 3)


class TwinnedWorld(World):
    """A world whose every verb is done by the naive twin too, and must end the same."""

    def __init__(self, slots: int, rows: int, *, eviction: Eviction) -> None:
        super().__init__(slots, rows, eviction=eviction)
        self.twin = NaivePrefixCache(slots, eviction)
        self.holds: dict[Running, NaiveHold] = {}

    def open(self, prompt, namespace=A, *, reuse=True):
        assert self.depths(prompt, namespace) == self.twin.match(namespace, prompt)
        with self.same_end(lambda: self.twin.open(namespace, prompt, reuse=reuse)) as hold:
            sequence = super().open(prompt, namespace, reuse=reuse)
        self.holds[sequence] = hold
        return sequence

    def checkpoint(self, sequence):
        with self.same_end(self.twin.acquire_slot):
            super().checkpoint(sequence)
        self.twin.publish(self.holds[sequence], sequence.tokens, with_state=True)

    def publish_rows(self, sequence):
        super().publish_rows(sequence)
        self.twin.publish(self.holds[sequence], sequence.tokens, with_state=False)

    def donate(self, sequence):
        super().donate(sequence)
        self.twin.publish(self.holds[sequence], sequence.tokens, with_state=True)
        self.twin.release(self.holds.pop(sequence))

    def abort(self, sequence):
        super().abort(sequence)
        self.twin.release_slot()
        self.twin.release(self.holds.pop(sequence))

    def pin(self, namespace, tokens):
        with self.same_end(lambda: self.twin.pin(namespace, tokens)) as pinned:
            assert super().pin(namespace, tokens) == pinned
        return pinned

    def unpin(self, namespace, tokens):
        super().unpin(namespace, tokens)
        self.twin.unpin(namespace, tokens)

    def flush(self):
        assert super().flush() == self.twin.flush()

    def check(self):
        super().check()
        assert self.states() == self.twin.states
        assert set(self.rows()) == self.twin.rows
        assert self.cache.rows.evictable() == self.twin.evictable_rows
        assert self.cache.tiers.balance("native").free == self.twin.num_free

    @contextmanager
    def same_end(self, theirs: Callable[[], Any]) -> Iterator[Any]:
        """Fail unless the twin's verb and the body both end, or both lack room."""
        try:
            result = theirs()
        except (CapacityError, RequestError) as error:
            with pytest.raises(type(error)):
                yield None
            raise error
        yield result


class Histories(RuleBasedStateMachine):
    """Requests over one cache; every refusal must leave everything as it was."""

    kind: type[World]
    rows: tuple[int, int]
    world: World

    @initialize(slots=st.integers(1, 6), eviction=st.sampled_from(get_args(Eviction)), data=st.data())
    def start(self, slots, eviction, data):
        self.world = self.kind(slots, data.draw(st.integers(*self.rows)), eviction=eviction)
        self.pinned: set[tuple[bytes, tuple[int, ...]]] = set()

    def pick(self, which: int) -> Running:
        return self.world.running[which % len(self.world.running)]

    def attempt(self, verb, *args, **kwargs):
        """Do it, or refuse for want of room; a refusal keeps the number of running sequences and their depths."""
        before = [(len(s.tokens), s.hold.depth) for s in self.world.running]
        try:
            return verb(*args, **kwargs)
        except CapacityError:
            assert [(len(s.tokens), s.hold.depth) for s in self.world.running] == before
            return None

    @rule(prompt=PROMPTS, namespace=NAMESPACES, reuse=st.sampled_from([True, True, True, False]))
    def open(self, prompt, namespace, reuse):
        promised = self.world.depths(prompt, namespace)[0] if reuse else 0
        opened = self.attempt(self.world.open, prompt, namespace, reuse=reuse)
        assert opened is None or len(opened.tokens) == promised < max(len(prompt), 1)

    @precondition(lambda self: self.world.running)
    @rule(which=WHICH, tokens=st.lists(TOKENS, min_size=1, max_size=3))
    def run(self, which, tokens):
        self.attempt(self.world.run, self.pick(which), tokens)

    @precondition(lambda self: self.world.running)
    @rule(which=WHICH)
    def checkpoint(self, which):
        if self.pick(which).tokens:
            self.attempt(self.world.checkpoint, self.pick(which))

    @precondition(lambda self: self.world.running)
    @rule(which=WHICH)
    def publish_rows(self, which):
        if self.pick(which).tokens:
            self.world.publish_rows(self.pick(which))

    @precondition(lambda self: self.world.running)
    @rule(which=WHICH)
    def donate(self, which):
        if self.pick(which).tokens:
            self.world.donate(self.pick(which))

    @precondition(lambda self: self.world.running)
    @rule(which=WHICH)
    def abort(self, which):
        self.world.abort(self.pick(which))

    @rule(prompt=st.lists(TOKENS, min_size=1, max_size=6), namespace=NAMESPACES)
    def serve(self, prompt, namespace):
        """A whole request at once."""
        sequence = self.attempt(self.world.open, prompt, namespace)
        if sequence is not None:
            self.attempt(self.world.run, sequence)
            if sequence.pending:
                self.world.abort(sequence)
            else:
                self.world.donate(sequence)

    def prefix(self, which):
        """One whose state is cached, or one that is not."""
        states = [*self.world.states(), (A, (7,))]
        return states[which % len(states)]

    @rule(which=st.integers(0, 9))
    def pin(self, which):
        prefix = self.prefix(which)
        with suppress(RequestError):
            pinned = self.world.pin(*prefix)
            assert pinned == (prefix[1] != (7,))
            self.pinned |= {prefix} if pinned else set()

    @precondition(lambda self: self.pinned)
    @rule(which=WHICH)
    def unpin(self, which):
        prefix = sorted(self.pinned)[which % len(self.pinned)]
        self.pinned.remove(prefix)
        self.world.unpin(*prefix)

    @rule()
    def flush(self):
        self.world.flush()

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


class Roomy(Histories):
    kind, rows = TwinnedWorld, (400, 400)


class Tight(Histories):
    kind, rows = World, (4, 24)


TestRoomy, TestTight = Roomy.TestCase, Tight.TestCase
