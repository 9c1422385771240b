"""What a shelf is to do, over plain lists and with every question answered from scratch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdover.store.spill import Entry, EntryName


@dataclass
class Kept:
    identity: str
    entry: Entry
    used: int = 0
    damaged: bool = False

    @property
    def name(self) -> EntryName:
        return self.entry.name

    def stands_at(self, identity: str, depth: int, key: bytes) -> bool:
        return (self.identity, self.name.depth, self.name.key) == (identity, depth, key)

    def continues(self, other: Kept) -> bool:
        return other.stands_at(self.identity, self.name.parent_depth, self.name.parent_key)


class NaiveShelf:
    def __init__(self, budget: int, size: Callable[[Entry], int]) -> None:
        self.budget, self.size = budget, size
        self.kept: list[Kept] = []
        self.time = 0

    def at(self, identity: str, depth: int, key: bytes) -> Kept | None:
        return next((one for one in self.kept if one.stands_at(identity, depth, key)), None)

    def used_bytes(self) -> int:
        return sum(self.size(one.entry) for one in self.kept)

    def put(self, identity: str, entry: Entry) -> bool:
        new, before = Kept(identity, entry), list(self.kept)
        old = self.at(identity, entry.name.depth, entry.name.key)
        old_is_whole = old is not None and self._is_whole(old)
        self.kept = [one for one in self.kept if one is not old] + [new]
        if old and entry.name.losses >= old.name.losses and (old_is_whole or not self._is_whole(new)):
            self.kept = before
            return True
        while self.used_bytes() > self.budget:
            victim = self._next_victim(new)
            if victim is None:
                self.kept = before
                return False
            self.kept.remove(victim)
        self._use(new)
        return True

    def get(self, identity: str, name: EntryName) -> Entry | None:
        """The entry, or None if it is gone or damaged, and gone from then on."""
        found = self.at(identity, name.depth, name.key)
        if found is None or found.name != name:
            return None
        if found.damaged:
            self.kept.remove(found)
            return None
        for one in self._path(found):
            self._use(one)
        return found.entry

    def _use(self, one: Kept) -> None:
        self.time += 1
        one.used = self.time

    def _path(self, one: Kept) -> list[Kept]:
        """It and all that it continues, the deepest last."""
        path = [one]
        while below := next((other for other in self.kept if path[0].continues(other)), None):
            path.insert(0, below)
        return path

    def _is_whole(self, one: Kept) -> bool:
        return self._path(one)[0].name.parent_depth == 0

    def _next_victim(self, new: Kept) -> Kept | None:
        others = [one for one in self.kept if one not in self._path(new)]
        broken = [one for one in others if not self._is_whole(one)]
        leaves = [one for one in others if not any(other.continues(one) for other in self.kept)]
        for candidates in (broken, leaves if self._is_whole(new) else []):
            if candidates:
                return min(candidates, key=lambda one: one.used)
        return None
