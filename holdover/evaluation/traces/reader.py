"""Recorded conversations, and what every reader of them does alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Role = Literal["user", "assistant", "system"]


@dataclass(frozen=True)
class Turn:
    """One message.

    Attributes:
        role: who wrote it.
        text: what they wrote; may be empty.
    """

    role: Role
    text: str


@dataclass(frozen=True)
class Conversation:
    """One recorded conversation.

    Attributes:
        id: its id in the file, or its place there if it has none.
        turns: at least one, in order.
    """

    id: str
    turns: tuple[Turn, ...]

    @classmethod
    def whole(cls, name: str, turns: Iterable[Turn | None]) -> Conversation | None:
        """The conversation of these turns; None if there is none, or one of them could not be read."""
        # a conversation with a turn missing is not the one that took place
        found = tuple(turns)
        known = tuple(turn for turn in found if turn is not None)
        return cls(name, known) if known and len(known) == len(found) else None


class Reader(Iterator[Conversation], ABC):
    """Iterates over the conversations of a source, in its order.

    Args:
        limit: most conversations to give; None for all.

    Attributes:
        skipped: entries so far that are no conversation.
        is_truncated: whether the source turned out to end, or to be damaged, before its end.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.skipped = 0
        self.is_truncated = False
        self._left = limit

    def __next__(self) -> Conversation:
        while self._left is None or self._left > 0:
            conversation = self._read_next()
            if conversation is None:
                self.skipped += 1
                continue
            if self._left is not None:
                self._left -= 1
            return conversation
        raise StopIteration

    @abstractmethod
    def _read_next(self) -> Conversation | None:
        """The next entry; None if it is no conversation.

        Raises:
            StopIteration: there is no further one.
        """
