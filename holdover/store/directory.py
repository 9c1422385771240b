"""Entries in a directory: they outlive the process, and several servers may share them.

```
<root>/lock                     held while what is in the root is decided on or changed
<root>/<identity>/*.entry       one file for each entry; its name says where it stands
<root>/<identity>/*.tmp         an entry that is being written, locked by its writer
```

An entry is written beside the others, synced and then renamed: at every instant, also of a crash, each ``.entry`` file
is whole. What makes room for it leaves after it has its name, so that a failure loses nothing.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Collection
from contextlib import ExitStack, suppress
from pathlib import Path

from holdover.errors import ConfigError, SpillError
from holdover.store.entry_file import file_bytes, file_name, name_of, read_entry, write_entry
from holdover.store.eviction import Resident, admit, best, over_budget
from holdover.store.folder_index import FolderIndex
from holdover.store.private_folder import locked, open_private, remove_abandoned, sync, temporary_file
from holdover.store.spill import Entry, EntryName

_IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


class Directory:
    """A shelf on disk.

    Opening it removes what dead writers left and evicts down to the budget.

    Args:
        root: directory of all identities; made with mode 0700 if there is none.
        budget: bytes that the files of all entries under ``root`` may take. A file that is being written comes on
            top, one for each server.
        identity: what tells states that cannot stand for each other apart, as a name of a folder.

    Raises:
        ConfigError: the root cannot be used, or is open to other users; the message says what to do.
    """

    def __init__(self, root: Path, *, budget: int, identity: str) -> None:
        if not _IDENTITY.fullmatch(identity):
            raise ConfigError(f"{identity!r} cannot name a folder: use letters, digits, '.', '_' and '-'")
        self._root = root
        self._folder = root / identity
        self._identity = identity
        self._budget = budget
        open_private(root)
        open_private(self._folder)
        self._index = FolderIndex(self._folder)
        try:
            with locked(root):
                self._remove(over_budget(self._tidy(), budget) or ())
        except OSError as error:
            raise ConfigError(f"{root} cannot hold spilled checkpoints: {error}; name another directory") from error

    @property
    def tier(self) -> str:
        """Its name in reports."""
        return "disk"

    def depths(self) -> Collection[int]:
        """Depths at which any entry of this identity stands."""
        return {depth for depth, _ in self._index.best()}

    def find(self, depth: int, key: bytes) -> EntryName | None:
        """The best entry of exactly these tokens, or None. Opens no file."""
        return self._index.best().get((depth, key))

    def put(self, entry: Entry) -> bool:
        """Write an entry durably; see `Shelf.put`. O(n log n) in the entries under the root, whose files it looks at.

        Raises:
            SpillError: it could not be written; what was there before is unchanged.
        """
        try:
            try:
                return self._put(entry)
            except FileNotFoundError:
                # somebody removed the folders while this server ran
                open_private(self._root)
                open_private(self._folder)
                return self._put(entry)
        except (OSError, ConfigError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SpillError(f"an entry cannot be written to {self._folder}: {reason}") from error

    def get(self, name: EntryName, *, with_state: bool = True) -> Entry:
        """Read an entry back; see `Shelf.get`.

        Raises:
            SpillError: it is gone, damaged or another's; a damaged entry is removed.
        """
        path = self._path(name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise SpillError(f"the entry at depth {name.depth} is gone: {path} does not exist") from None
        except OSError as error:
            raise SpillError(f"{path} cannot be opened: {error.strerror}") from error
        try:
            entry = read_entry(fd, name, with_state=with_state)
        except SpillError as error:
            self._discard(path, fd)
            raise SpillError(f"{path}: {error}") from error
        except OSError as error:
            if error.errno == errno.EIO:
                self._discard(path, fd)
            raise SpillError(f"{path} cannot be read: {error.strerror}") from error
        finally:
            os.close(fd)
        self._touch(name)
        return entry

    def _put(self, entry: Entry) -> bool:
        newcomer = Resident(entry.name, file_bytes(entry), time.time_ns(), self._identity)
        with ExitStack() as until_named:
            with locked(self._root):
                admission = admit(self._tidy(), newcomer, self._budget)
                if not admission.write:
                    return admission.kept
                fd, temporary = until_named.enter_context(temporary_file(self._folder))
            write_entry(fd, entry)
            os.utime(fd, ns=(newcomer.used, newcomer.used))
            os.fsync(fd)
            return self._admit(newcomer, temporary)

    def _admit(self, newcomer: Resident, written: Path) -> bool:
        with locked(self._root):
            # others came and went while it was written
            admission = admit(self._tidy(), newcomer, self._budget)
            if admission.write:
                path = self._path(newcomer.name)
                os.rename(written, path)
                try:
                    sync(self._folder)
                    self._remove(admission.victims)
                except OSError:
                    path.unlink()
                    raise
            return admission.kept

    def _tidy(self) -> list[Resident]:
        """Remove what crashes left; list what remains, of all identities. To be called under the lock."""
        found: list[Resident] = []
        for folder in os.scandir(self._root):
            if folder.is_dir(follow_symlinks=False):
                remove_abandoned(Path(folder))
                found += _residents(folder)
        if len({one.place for one in found}) == len(found):
            return found
        kept = best(found)
        self._remove(set(found).difference(kept))
        return kept

    def _remove(self, residents: Collection[Resident]) -> None:
        for one in residents:
            (self._root / one.identity / file_name(one.name)).unlink(missing_ok=True)

    def _discard(self, path: Path, fd: int) -> None:
        """Remove a damaged file, unless the path stands for another one by now."""
        # a file that cannot be removed is met, and reported, again
        with suppress(OSError), locked(self._root):
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                path.unlink()

    def _touch(self, name: EntryName) -> None:
        now, names = time.time_ns(), self._index.best()
        link: EntryName | None = name
        while link is not None:
            # what was evicted meanwhile, or may not be touched, keeps its place in the order
            with suppress(OSError):
                os.utime(self._path(link), ns=(now, now))
            link = names.get((link.parent_depth, link.parent_key))

    def _path(self, name: EntryName) -> Path:
        return self._folder / file_name(name)


def _residents(folder: os.DirEntry[str]) -> list[Resident]:
    found = []
    for file in os.scandir(folder):
        name = name_of(file.name)
        # a file that somebody removed by hand is no failure
        with suppress(FileNotFoundError):
            if name is not None:
                status = file.stat(follow_symlinks=False)
                found.append(Resident(name, status.st_size, status.st_mtime_ns, folder.name))
    return found
