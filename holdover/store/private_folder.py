"""A folder for private data that several processes share: made or checked, locked, written to atomically."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdover.errors import ConfigError

_LOCK = "lock"
_TEMPORARY = ".tmp"
# group and others
_FOREIGN = 0o077


def open_private(folder: Path) -> None:
    """Make a folder with mode 0700, or check one that exists. An empty one that others could enter is tightened.

    Raises:
        ConfigError: it is no folder, another user's, not writable, or not empty and open to others: what is in it
            may be meant for them, so its mode is its owner's to change.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid != os.geteuid():
            raise ConfigError(f"{folder} belongs to another user; name a directory of your own")
        if status.st_mode & _FOREIGN:
            if any(folder.iterdir()):
                raise ConfigError(f"others may enter {folder}; close it with: chmod 700 '{folder}'")
            folder.chmod(0o700)
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise ConfigError(f"{folder} is not writable; make it so, or name another directory")
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"{error.filename} is a file, not a directory; name a directory") from error
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error.strerror}; name another directory") from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Exclude every other thread and process that locks the folder, until the end of the block or of the process.

    Raises:
        OSError: the folder cannot be locked.
    """
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextmanager
def temporary_file(folder: Path) -> Iterator[tuple[int, Path]]:
    """A file of mode 0600, marked as in use until the end of the block, where it is removed unless it was renamed.

    To be entered under the lock that guards `remove_abandoned`, or the file may be taken for an abandoned one.

    Raises:
        OSError: it cannot be made.
    """
    fd, path = tempfile.mkstemp(suffix=_TEMPORARY, dir=folder)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd, Path(path)
    finally:
        # also when the disk is full or gone, the error that counts is the one on its way
        with suppress(OSError):
            os.unlink(path)
        os.close(fd)


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files of writers that died.

    Raises:
        OSError: one cannot be removed.
    """
    for path in folder.glob(f"*{_TEMPORARY}"):
        with suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                # a writer holds it for as long as it lives
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            except BlockingIOError:
                pass
            finally:
                os.close(fd)


def sync(folder: Path) -> None:
    """Make the names in a folder durable.

    Raises:
        OSError: they may not be.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
