"""What entries a folder holds, by its files' names, read again only when the folder changed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from holdover.store.entry_file import name_of
from holdover.store.spill import EntryName

# file systems stamp changes with a clock that ticks up to every 10 ms: what changes again within the tick of a
# listing keeps its time stamp
_TICK_NS = 20_000_000


class FolderIndex:
    """Entries of a folder that other processes change too. Thread-safe.

    Args:
        folder: where the entries' files are. A folder that cannot be read holds none.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mutex = threading.Lock()
        self._names: dict[str, EntryName | None] = {}
        self._best: dict[tuple[int, bytes], EntryName] = {}
        self._changed = -1
        self._listed = 0

    def best(self) -> Mapping[tuple[int, bytes], EntryName]:
        """The best entry at every depth and key, now. What is returned never changes."""
        with self._mutex:
            try:
                changed = os.stat(self._folder).st_mtime_ns
                if changed != self._changed or self._listed - changed < _TICK_NS:
                    self._listed = time.time_ns()
                    self._list()
                    self._changed = changed
            except OSError:
                self._names, self._best, self._changed = {}, {}, -1
            return self._best

    def _list(self) -> None:
        files = os.listdir(self._folder)
        if len(files) == len(self._names) and all(file in self._names for file in files):
            return
        self._names = {file: self._names[file] if file in self._names else name_of(file) for file in files}
        names = [name for name in self._names.values() if name is not None]
        # the last one at a place wins
        names.sort(key=lambda name: -name.losses)
        self._best = {(name.depth, name.key): name for name in names}
