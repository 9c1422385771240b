"""Conversations in ShareGPT's JSON: a list of ``{"id", "conversations": [{"from", "value"}]}``.

Published copies are often cut off in mid-file, and some entries have no turns or turns of unknown roles. What is
whole is read, what is not is counted.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

from holdover.errors import HoldoverError
from holdover.evaluation.traces.reader import Conversation, Reader, Role, Turn

logger = logging.getLogger(__name__)

_BLANKS = re.compile(r"[ \t\n\r]*")

_ROLES: dict[str, Role] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    # names of other assistants in the published data
    "bard": "assistant",
    "bing": "assistant",
    "chatgpt": "assistant",
    "system": "system",
}


class ShareGPTReader(Reader):
    """Iterates over the conversations of a file's text; made by `load_sharegpt`.

    Args:
        text: the file's text.
        limit: most conversations to give; None for all.
        where: name of the file, for messages.

    Attributes:
        skipped: entries so far that were malformed or had no turns.
        is_truncated: whether the file ended, or stopped being JSON, before its list did; known at the end.

    Raises:
        HoldoverError: the text does not begin as a JSON list.
    """

    def __init__(self, text: str, limit: int | None = None, where: str = "trace") -> None:
        super().__init__(limit)
        self._text = text
        self._where = where
        self._decoder = json.JSONDecoder()
        self._entries = 0
        start = self._after_blanks(0)
        if not text.startswith("[", start):
            raise HoldoverError(
                f"{where} is not ShareGPT JSON: want a list of conversations, got {_shown(text, start)}"
            )
        self._position: int | None = self._after_blanks(start + 1)
        if self._position < len(text) and text[self._position] != "]":
            self._check_first_entry(self._position)

    def _read_next(self) -> Conversation | None:
        entry = self._next_entry()
        return _conversation(entry, str(self._entries - 1))

    def _next_entry(self) -> Any:
        position = self._position
        if position is None:
            raise StopIteration
        if self._text.startswith("]", position):
            self._position = None
            raise StopIteration
        try:
            entry, end = self._decoder.raw_decode(self._text, position)
        except (ValueError, RecursionError):
            self._stop_early(position)
            raise StopIteration from None
        self._entries += 1
        end = self._after_blanks(end)
        if self._text.startswith(",", end):
            self._position = self._after_blanks(end + 1)
        elif self._text.startswith("]", end):
            self._position = end
        else:
            self._stop_early(end)
        return entry

    def _stop_early(self, position: int) -> None:
        self._position = None
        self.is_truncated = True
        logger.warning(
            "%s is cut off or damaged: read %d whole entries up to character %d of %d",
            self._where,
            self._entries,
            position,
            len(self._text),
        )

    def _check_first_entry(self, position: int) -> None:
        # a list whose very first entry is no JSON is another kind of file; a longer list was cut
        try:
            self._decoder.raw_decode(self._text, position)
        except (ValueError, RecursionError) as error:
            raise HoldoverError(f"{self._where} is not ShareGPT JSON: its first entry has no end ({error})") from None

    def _after_blanks(self, position: int) -> int:
        match = _BLANKS.match(self._text, position)
        assert match is not None
        return match.end()


def load_sharegpt(path: str | Path, limit: int | None = None) -> ShareGPTReader:
    """Read conversations from a file, which is read whole at once and parsed one entry at a time.

    Args:
        path: the file.
        limit: most conversations to give; None for all.

    Returns:
        An iterator that also counts what it skipped.

    Raises:
        HoldoverError: the file cannot be read, is not UTF-8, or is not a JSON list.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise HoldoverError(f"trace {path} cannot be read: {error.strerror or error}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # a file cut off within a character has whole entries before it
        if error.end != len(data) or error.reason != "unexpected end of data":
            raise HoldoverError(f"trace {path} is not UTF-8: {error.reason} at byte {error.start}") from None
        text = data[: error.start].decode("utf-8-sig")
    return ShareGPTReader(text, limit, f"trace {path}")


def _conversation(entry: Any, place: str) -> Conversation | None:
    if not isinstance(entry, dict) or not isinstance(messages := entry.get("conversations"), list):
        return None
    return Conversation.whole(str(entry.get("id", place)), map(_turn, messages))


def _turn(message: Any) -> Turn | None:
    if not isinstance(message, dict):
        return None
    sender, text = message.get("from"), message.get("value")
    role = _ROLES.get(sender) if isinstance(sender, str) else None
    return Turn(role, text) if role is not None and isinstance(text, str) else None


def _shown(text: str, start: int) -> str:
    return repr(text[start : start + 20]) if start < len(text) else "an empty file"
