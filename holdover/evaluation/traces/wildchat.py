"""Conversations in WildChat's Parquet files: a column of ids and a column of ``[{"role", "content", ...}]``.

Only these two columns are read, one batch of rows at a time. A file that is damaged in the middle gives what is whole
before the damage; it is said where that was.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdover.errors import ConfigError, HoldoverError
from holdover.evaluation.traces.reader import Conversation, Reader, Role, Turn

logger = logging.getLogger(__name__)

_ID, _TURNS = "conversation_hash", "conversation"
_ROWS = 256
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}


class WildChatReader(Reader):
    """Iterates over the conversations of a file, or of a directory's files in the order of their names.

    Args:
        path: the file, or the directory.
        limit: most conversations to give; None for all.

    Attributes:
        skipped: rows so far that are no conversation.
        is_truncated: whether a file turned out to be damaged; its later rows were not read.

    Raises:
        ConfigError: pyarrow is missing.
        HoldoverError: there is no file, or the first one is not WildChat's.
    """

    def __init__(self, path: str | Path, limit: int | None = None) -> None:
        super().__init__(limit)
        path = Path(path)
        files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not files:
            raise HoldoverError(f"trace {path} has no .parquet files: name WildChat's files or their directory")
        # what is wrong with the first is said now, not in the middle of something
        _open(files[0])
        self._rows = self._read(files)

    def _read_next(self) -> Conversation | None:
        return _conversation(next(self._rows))

    def _read(self, files: list[Path]) -> Iterator[dict[str, Any]]:
        for path in files:
            read = 0
            try:
                for batch in _open(path).iter_batches(_ROWS, columns=[_ID, _TURNS]):
                    rows = batch.to_pylist()
                    yield from rows
                    read += len(rows)
            except (OSError, ValueError) as error:
                # pyarrow's own errors are ValueErrors
                self.is_truncated = True
                logger.warning("trace %s is damaged behind row %d: %s", path, read, _one_line(error))


def _open(path: Path) -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise ConfigError('Parquet files are read with pyarrow: pip install "holdover[wildchat]"') from None
    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise HoldoverError(f"trace {path} cannot be read as Parquet (is it whole?): {_one_line(error)}") from None
    if missing := {_ID, _TURNS} - set(file.schema_arrow.names):
        raise HoldoverError(f"trace {path} is not WildChat's: it has no column {sorted(missing)[0]!r}")
    return file


def _conversation(row: dict[str, Any]) -> Conversation | None:
    messages = row[_TURNS]
    if not isinstance(row[_ID], str) or not messages:
        return None
    return Conversation.whole(row[_ID], map(_turn, messages))


def _turn(message: Any) -> Turn | None:
    if not isinstance(message, dict):
        return None
    role, text = _ROLES.get(message.get("role", "")), message.get("content")
    return Turn(role, text) if role is not None and isinstance(text, str) else None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
