"""The chunk store's executable definition: lists of what is there, no pools and no bytes.

It must agree exactly, order of eviction included, where rows come from the pool and every state is dense.
"""

from __future__ import annotations

from typing import NamedTuple

from holdover.errors import CapacityError, OwnershipError


class Name(NamedTuple):
    """A chunk, by whose it is and its tokens."""

    namespace: bytes
    tokens: tuple[int, ...]


class NaiveChunkStore:
    """Chunks kept, least recently used first; chunks being built; claims; slots that somebody else runs in."""

    def __init__(self, slots: int, rows: int, max_rows: int, max_inputs: int) -> None:
        self.slots, self.rows, self.max_rows, self.max_inputs = slots, rows, max_rows, max_inputs
        self.kept: list[Name] = []
        self.building: list[Name] = []
        self.holds: list[tuple[Name, ...]] = []
        self.live = 0

    @property
    def owned(self) -> int:
        """Tokens of everything that is there, which is its rows and its conv inputs."""
        return sum(len(name.tokens) for name in (*self.kept, *self.building))

    def begin(self, name: Name) -> None:
        """Claim a chunk and its room, then a live slot; chunks evicted for its rows stay so if there is no slot."""
        if name in (*self.kept, *self.building):
            raise OwnershipError("there, or being built")
        held = sum(len(n.tokens) for n in (*self.building, *filter(self.is_pinned, self.kept)))
        if held + len(name.tokens) > min(self.max_rows, self.max_inputs):
            raise CapacityError("never")
        while self.owned + len(name.tokens) > min(self.max_rows, self.max_inputs):
            self._evict()
        while self.owned + len(name.tokens) > self.rows:
            self._evict()
        self._slot()
        self.building.append(name)

    def finish(self, name: Name) -> None:
        """A build's slot becomes a state, the newest."""
        self.building.remove(name)
        self.kept.append(name)

    def abandon(self, name: Name) -> None:
        """Forget a build."""
        self.building.remove(name)

    def hold(self, names: tuple[Name, ...]) -> None:
        """Claim chunks and make them the newest, in order."""
        for name in names:
            self.kept.remove(name)
            self.kept.append(name)
        self.holds.append(names)

    def release(self, names: tuple[Name, ...]) -> None:
        """Give a claim back."""
        self.holds.remove(names)

    def remove(self, name: Name) -> None:
        """Drop a chunk that nobody claims."""
        if self.is_pinned(name):
            raise OwnershipError("pinned")
        self.kept.remove(name)

    def acquire(self) -> None:
        """Lease a slot, at the cost of the oldest chunk that may go."""
        self._slot()
        self.live += 1

    def reclaim(self, rows: int) -> int:
        """Drop the oldest until so many rows came free."""
        before = self.owned
        while before - self.owned < rows and not all(map(self.is_pinned, self.kept)):
            self._evict()
        return before - self.owned

    def flush(self) -> int:
        """Drop all that nobody claims."""
        before, self.kept = len(self.kept), [name for name in self.kept if self.is_pinned(name)]
        return before - len(self.kept)

    def is_pinned(self, name: Name) -> bool:
        """Whether somebody claims it."""
        return any(name in hold for hold in self.holds)

    def _slot(self) -> None:
        if self.live + len(self.building) + len(self.kept) >= self.slots:
            self._evict()

    def _evict(self) -> None:
        victim = next((name for name in self.kept if not self.is_pinned(name)), None)
        if victim is None:
            raise CapacityError("nothing may go")
        self.kept.remove(victim)
