"""What the scheduler may count on: what every rank has in its host memory or folder, and what is on its way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from holdover.integrations.vllm.connector.metadata import StepReport
from holdover.store.folder_index import FolderIndex
from holdover.store.spill import EntryName

Place: TypeAlias = tuple[int, bytes]


class Catalogue:
    """Names of entries, by depth and key. An entry is there if each rank has its part of it.

    What it says may be outdated: a load can fail.

    Args:
        folders: index of each rank's entries on disk; None where there is no disk tier.
    """

    def __init__(self, folders: Sequence[FolderIndex | None]) -> None:
        self._folders = folders
        self._host: list[dict[Place, EntryName]] = [{} for _ in folders]
        self._pending: dict[Place, EntryName] = {}
        # ranks that have not settled an entry yet
        self._awaited: dict[EntryName, set[int]] = {}
        self._unusable: set[Place] = set()
        self._listed: Mapping[Place, EntryName] = {}
        self._listed_depths: frozenset[int] = frozenset()

    @property
    def has_pending(self) -> bool:
        """Whether entries are announced and not yet settled by every rank."""
        return bool(self._awaited)

    def depths(self) -> set[int]:
        """Depths at which there may be entries: where the first rank has some, and where some are on their way."""
        listed = self._on_disk(0)
        # a folder's listing is the same object until it changes
        if listed is not self._listed:
            self._listed, self._listed_depths = listed, frozenset(depth for depth, _ in listed)
        near = {depth for places in (self._host[0], self._pending) for depth, _ in places}
        return near | self._listed_depths

    def deepest(self, places: Iterable[Place]) -> EntryName | None:
        """The first of ``places`` that every rank can load."""
        ranks = [(host, self._on_disk(rank)) for rank, host in enumerate(self._host)]
        for place in places:
            found = [host.get(place) or disk.get(place) for host, disk in ranks]
            if place not in self._unusable and (name := _worst(found)):
                return name
        return None

    def kept(self, place: Place) -> EntryName | None:
        """The entry that stands, or will stand, at a place in the tier that lasts longest: one may continue it."""
        if place in self._unusable:
            return None
        lasting = [self._on_disk(rank) if self._folders[rank] else host for rank, host in enumerate(self._host)]
        return self._pending.get(place) or _worst([names.get(place) for names in lasting])

    def announce(self, name: EntryName) -> None:
        """An entry is about to be written."""
        self._pending[name.depth, name.key] = name
        self._awaited[name] = set(range(len(self._host)))
        self._unusable.discard((name.depth, name.key))

    def absorb(self, report: StepReport) -> None:
        """Take note of what the workers did."""
        for rank, done in report.ranks.items():
            for name in done.settled:
                self._settle(name, rank)
            for name in done.left:
                self._host[rank].pop((name.depth, name.key), None)
            for name in done.arrived:
                self._host[rank][name.depth, name.key] = name
            self._unusable.update((name.depth, name.key) for name in done.unusable)

    def _settle(self, name: EntryName, rank: int) -> None:
        awaited = self._awaited.get(name, set())
        awaited.discard(rank)
        if not awaited:
            self._awaited.pop(name, None)
            if self._pending.get((name.depth, name.key)) == name:
                del self._pending[name.depth, name.key]

    def _on_disk(self, rank: int) -> Mapping[Place, EntryName]:
        folder = self._folders[rank]
        return folder.best() if folder is not None else {}


def _worst(found: Sequence[EntryName | None]) -> EntryName | None:
    """The entry with most losses, as the whole has them; None where a rank has none."""
    names = [name for name in found if name is not None]
    return max(names, key=lambda name: name.losses) if len(names) == len(found) else None
