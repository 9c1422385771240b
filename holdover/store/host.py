"""Entries in host memory: gone with the process, and back without a disk."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection
from dataclasses import replace

import torch

from holdover.errors import SpillError
from holdover.store.entry_check import refuse_contradiction
from holdover.store.eviction import Admission, Resident, admit
from holdover.store.spill import Entry, EntryName


class HostShelf:
    """A shelf in host memory.

    Args:
        budget: bytes that the state and rows of all entries may take. While an entry is copied in, it comes on top.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._mutex = threading.Lock()
        self._clock = itertools.count()
        self._entries: dict[tuple[int, bytes], Entry] = {}
        self._used: dict[tuple[int, bytes], int] = {}

    @property
    def tier(self) -> str:
        """Its name in reports."""
        return "host"

    def depths(self) -> Collection[int]:
        """Depths at which any entry stands."""
        with self._mutex:
            return {depth for depth, _ in self._entries}

    def names(self) -> Collection[EntryName]:
        """All entries."""
        with self._mutex:
            return [entry.name for entry in self._entries.values()]

    def find(self, depth: int, key: bytes) -> EntryName | None:
        """The best entry of exactly these tokens, or None."""
        with self._mutex:
            entry = self._entries.get((depth, key))
        return entry.name if entry else None

    def put(self, entry: Entry) -> bool:
        """Keep a copy of an entry; see `Shelf.put`. O(n log n) in the entries kept.

        Raises:
            SpillError: its parts contradict each other.
        """
        refuse_contradiction(entry)
        with self._mutex:
            admission = self._admit(entry)
        if admission.write:
            # a copy: a view would keep its base alive outside the budget. Without the lock: lookups need not wait
            copy = replace(entry, state=entry.state.clone(), kv=entry.kv.clone())
            with self._mutex:
                admission = self._admit(entry)
                if admission.write:
                    self._exchange(admission.victims, copy)
        return admission.kept

    def get(self, name: EntryName, *, with_state: bool = True) -> Entry:
        """Hand an entry out; see `Shelf.get`. Its tensors are the shelf's own, to be read only.

        Raises:
            SpillError: it is gone.
        """
        with self._mutex:
            entry = self._entries.get((name.depth, name.key))
            if entry is None or entry.name != name:
                raise SpillError(f"the entry at depth {name.depth} is gone from host memory")
            self._touch(name)
        return entry if with_state else replace(entry, state=torch.empty(0, dtype=torch.uint8))

    def _admit(self, entry: Entry) -> Admission:
        residents = [Resident(one.name, one.nbytes, self._used[place]) for place, one in self._entries.items()]
        return admit(residents, Resident(entry.name, entry.nbytes, next(self._clock)), self._budget)

    def _exchange(self, victims: Collection[Resident], entry: Entry) -> None:
        for victim in victims:
            place = victim.name.depth, victim.name.key
            del self._entries[place], self._used[place]
        place = entry.name.depth, entry.name.key
        self._entries[place], self._used[place] = entry, next(self._clock)

    def _touch(self, name: EntryName) -> None:
        now = next(self._clock)
        link: Entry | None = self._entries[name.depth, name.key]
        while link is not None:
            self._used[link.name.depth, link.name.key] = now
            link = self._entries.get((link.name.parent_depth, link.name.parent_key))
