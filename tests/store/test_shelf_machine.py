"""Random histories of shelves: always exactly the naive twin's."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdover.errors import SpillError
from holdover.store.directory import Directory
from holdover.store.entry_file import file_bytes, file_name
from holdover.store.host import HostShelf
from holdover.store.spill import Entry, EntryName, Shelf
from tests.store.entries import assert_same, entry_of, make_name
from tests.store.naive_shelf import NaiveShelf

DEPTHS, TEXTS = range(1, 7), ("a", "b")
# chains often meet, break and fork
NAMES = st.builds(
    lambda depth, back, text, losses: make_name(depth, max(depth - back, 0), text, losses),
    st.sampled_from(DEPTHS),
    st.sampled_from([1, 1, 2, 6]),
    st.sampled_from(TEXTS),
    st.sampled_from([0, 0, 1, 2]),
)
WHICH = st.integers(0, 20)
IDENTITIES = ("one", "two")


def sized(name: EntryName) -> Entry:
    """The entry of a name; the deepest are so large that several others must leave for one."""
    return entry_of(name, state_bytes=1500 if name.depth == max(DEPTHS) else 60)


class Shelves(RuleBasedStateMachine):
    """Verbs on a shelf and its twin. An identity is a namespace of entries within one budget."""

    identities: tuple[str, ...] = ("one",)
    twin: NaiveShelf

    def shelf(self, identity: str) -> Shelf:
        raise NotImplementedError

    @rule(identity=st.sampled_from(IDENTITIES), name=NAMES)
    def put(self, identity: str, name: EntryName) -> None:
        identity = identity if identity in self.identities else self.identities[0]
        entry = sized(name)
        assert self.shelf(identity).put(entry) == self.twin.put(identity, entry)

    @rule(which=WHICH, with_state=st.booleans())
    def get(self, which: int, with_state: bool) -> None:
        if self.twin.kept:
            kept = self.twin.kept[which % len(self.twin.kept)]
            self.expect(kept.identity, kept.name, with_state)

    @rule(identity=st.sampled_from(IDENTITIES), name=NAMES)
    def get_any(self, identity: str, name: EntryName) -> None:
        self.expect(identity if identity in self.identities else self.identities[0], name, True)

    def expect(self, identity: str, name: EntryName, with_state: bool) -> None:
        wanted = self.twin.get(identity, name)
        if wanted is None:
            with pytest.raises(SpillError):
                self.shelf(identity).get(name, with_state=with_state)
        else:
            assert_same(self.shelf(identity).get(name, with_state=with_state), wanted, with_state=with_state)

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "twin"):
            return
        assert self.twin.used_bytes() <= self.twin.budget
        for identity in self.identities:
            shelf = self.shelf(identity)
            kept = {(one.name.depth, one.name.key): one.name for one in self.twin.kept if one.identity == identity}
            assert set(shelf.depths()) == {depth for depth, _ in kept}
            for text in TEXTS:
                for depth in DEPTHS:
                    key = make_name(depth, text=text).key
                    assert shelf.find(depth, key) == kept.get((depth, key))


class Host(Shelves):
    @initialize(budget=st.sampled_from([0, 300, 1000, 2000, 2500]))
    def start(self, budget: int) -> None:
        self.only = HostShelf(budget)
        self.twin = NaiveShelf(budget, lambda entry: entry.nbytes)

    def shelf(self, identity: str) -> Shelf:
        return self.only


class Disk(Shelves):
    """Two identities under one root, each with two servers that take turns."""

    identities = IDENTITIES

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.turn = 0

    @initialize(budget=st.sampled_from([0, 1000, 3000, 5000, 8000]))
    def start(self, budget: int) -> None:
        self.twin = NaiveShelf(budget, file_bytes)
        self.servers = {identity: [self.open(identity) for _ in range(2)] for identity in IDENTITIES}

    def open(self, identity: str) -> Directory:
        return Directory(self.root, budget=self.twin.budget, identity=identity)

    def shelf(self, identity: str) -> Shelf:
        self.turn += 1
        return self.servers[identity][self.turn % 2]

    @rule(identity=st.sampled_from(IDENTITIES), which=WHICH)
    def restart(self, identity: str, which: int) -> None:
        self.servers[identity][which % 2] = self.open(identity)

    @rule(which=WHICH, place=st.integers(0, 10_000))
    def damage(self, which: int, place: int) -> None:
        if self.twin.kept:
            kept = self.twin.kept[which % len(self.twin.kept)]
            if not kept.damaged:
                path = self.root / kept.identity / file_name(kept.name)
                status, data = path.stat(), bytearray(path.read_bytes())
                # the header: whoever reads anything of it reads that
                data[place % 32] ^= 0x10
                path.write_bytes(data)
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
                kept.damaged = True

    @rule(which=WHICH)
    def remove_by_hand(self, which: int) -> None:
        if self.twin.kept:
            kept = self.twin.kept.pop(which % len(self.twin.kept))
            (self.root / kept.identity / file_name(kept.name)).unlink()

    @invariant()
    def nothing_else_is_there(self) -> None:
        if hasattr(self, "twin"):
            files = {path for path in self.root.rglob("*") if path.is_file()} - {self.root / "lock"}
            assert files == {self.root / one.identity / file_name(one.name) for one in self.twin.kept}
            assert sum(path.stat().st_size for path in files) == self.twin.used_bytes()

    def teardown(self) -> None:
        self.folder.cleanup()


TestHost, TestDisk = Host.TestCase, Disk.TestCase
TestHost.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestDisk.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
