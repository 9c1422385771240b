"""Work that an evaluation has finished, on disk, so that one that was interrupted goes on where it stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdover.errors import ConfigError

_IDENTITY = "identity"


class Journal:
    """Finished entries by key, each a line of JSON; the first line says what they are entries of.

    Args:
        path: the file; None to keep entries in memory only.
        identity: everything that decides what an entry says; of JSON's types.
        resume: take over what is there; False to refuse a file that exists.

    Raises:
        ConfigError: the file cannot be read or written, exists, or belongs to another evaluation.
    """

    def __init__(self, path: Path | None, identity: Mapping[str, Any], *, resume: bool = False) -> None:
        self._path = path
        self._entries: dict[str, Any] = {}
        self._file: FileIO | None = None
        if path is None:
            return
        refuse_existing(path, resume=resume)
        # as JSON gives it back, so that tuples and lists compare equal
        wanted = json.loads(json.dumps(identity))
        try:
            kept = self._read(path, wanted) if path.exists() else 0
            # not for appending: what a crash left of a line is overwritten
            self._file = path.open("r+b" if kept else "wb", buffering=0)
            self._file.truncate(kept)
            self._file.seek(kept)
        except OSError as error:
            raise ConfigError(f"{path} cannot be used: {error.strerror or error}") from error
        if not kept:
            self._write([{_IDENTITY: wanted}])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()
            if self._path is not None and not self._entries:
                self._path.unlink(missing_ok=True)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def __getitem__(self, key: str) -> Any:
        return self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entries: Mapping[str, Any]) -> None:
        """Record entries; they are on disk when this returns.

        Raises:
            ConfigError: they cannot be written. Those before are kept.
        """
        self._entries.update(entries)
        self._write([{"key": key, "value": value} for key, value in entries.items()])

    def _write(self, lines: list[dict[str, Any]]) -> None:
        if self._file is None:
            return
        data = "".join(json.dumps(line) + "\n" for line in lines).encode()
        try:
            while data:
                data = data[self._file.write(data) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ConfigError(
                f"{self._path} cannot be written: {error.strerror or error}; make room and go on by --resume"
            ) from error

    def _read(self, path: Path, wanted: Any) -> int:
        """Take over the entries of a file; returns the bytes of its whole lines."""
        data = path.read_bytes()
        kept = data.rfind(b"\n") + 1
        if not kept:
            return 0
        try:
            first, *rest = [json.loads(line) for line in data[:kept].splitlines()]
            found = first[_IDENTITY]
            self._entries = {line["key"]: line["value"] for line in rest}
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is no record of an evaluation: choose another file") from error
        if found != wanted:
            raise ConfigError(f"{path} is of another evaluation ({_difference(found, wanted)}): choose another file")
        return kept


def refuse_existing(path: Path, *, resume: bool) -> None:
    """Keep what an earlier run has finished from being overwritten.

    Raises:
        ConfigError: there is such a file, and it is not to be gone on with.
    """
    if path.exists() and not resume:
        raise ConfigError(f"{path} exists: go on with it by --resume, or remove it")


def _difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    differing = [name for name in {**wanted, **found} if found.get(name) != wanted.get(name)]
    return "; ".join(f"{name} was {found.get(name)!r} and is {wanted.get(name)!r}" for name in differing)
