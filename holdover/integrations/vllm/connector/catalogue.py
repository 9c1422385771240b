"""What the scheduler may count on: entries of the worker's host memory, of the directory, and those on their way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from holdover.integrations.vllm.connector.metadata import StepReport
from holdover.store.folder_index import FolderIndex
from holdover.store.spill import EntryName

Place: TypeAlias = tuple[int, bytes]


class Catalogue:
    """Names of entries, by depth and key. What it says may be outdated: a load can fail.

    Args:
        folder: index of the entries on disk; None where there is no disk tier.
    """

    def __init__(self, folder: FolderIndex | None) -> None:
        self._folder = folder
        self._host: dict[Place, EntryName] = {}
        self._pending: dict[Place, EntryName] = {}
        self._unusable: set[Place] = set()

    @property
    def has_pending(self) -> bool:
        """Whether entries are announced and not yet settled."""
        return bool(self._pending)

    def deepest(self, places: Iterable[Place]) -> EntryName | None:
        """The first of ``places`` that can be loaded."""
        disk = self._folder.best() if self._folder is not None else {}
        for place in places:
            name = self._host.get(place) or disk.get(place)
            if name is not None and place not in self._unusable:
                return name
        return None

    def kept(self, place: Place) -> EntryName | None:
        """The entry that stands, or will stand, at a place in the tier that lasts longest: one may continue it."""
        if place in self._unusable:
            return None
        disk = self._folder.best() if self._folder is not None else self._host
        return self._pending.get(place) or disk.get(place)

    def announce(self, name: EntryName) -> None:
        """An entry is about to be written."""
        self._pending[name.depth, name.key] = name
        self._unusable.discard((name.depth, name.key))

    def absorb(self, report: StepReport) -> None:
        """Take note of what the worker did."""
        for name in report.settled:
            self._pending.pop((name.depth, name.key), None)
        for name in report.left:
            self._host.pop((name.depth, name.key), None)
        for name in report.arrived:
            self._host[name.depth, name.key] = name
        self._unusable.update((name.depth, name.key) for name in report.unusable)
