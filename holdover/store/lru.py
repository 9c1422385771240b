"""Least-recently-used order: the one source of order for what is evicted next, unless a subclass ranks otherwise."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class LRU(Generic[T]):
    """Order of entries by last use, oldest first. Entries are compared by identity."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, T] = OrderedDict()

    def touch(self, entry: T) -> None:
        """Make an entry the newest; adds it if it is new."""
        self._entries[id(entry)] = entry
        self._entries.move_to_end(id(entry))

    def demote(self, entry: T) -> None:
        """Make an entry the oldest; adds it if it is new."""
        self._entries[id(entry)] = entry
        self._entries.move_to_end(id(entry), last=False)

    def discard(self, entry: T) -> None:
        """Forget an entry; unknown entries are ignored."""
        self._entries.pop(id(entry), None)

    def oldest(self, may_go: Callable[[T], bool]) -> T | None:
        """Oldest entry that ``may_go``, or None."""
        return next((entry for entry in self if may_go(entry)), None)

    def __iter__(self) -> Iterator[T]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: T) -> bool:
        return id(entry) in self._entries
