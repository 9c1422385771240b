"""Which reader a file of recorded conversations needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from holdover.evaluation.traces.sharegpt import Conversation, load_sharegpt
from holdover.evaluation.traces.wildchat import WildChatReader


class Recordings(Protocol):
    """Conversations, with what a reader had to leave out.

    Attributes:
        skipped: entries so far that are no conversation.
        is_truncated: whether the source turned out to end early.
    """

    skipped: int
    is_truncated: bool

    def __iter__(self) -> Iterator[Conversation]:
        """The conversations, in the source's order."""


def open_recordings(path: str | Path) -> Recordings:
    """Conversations of a file: WildChat's if it is a ``.parquet`` file or a directory of them, else ShareGPT's JSON.

    Raises:
        HoldoverError: it cannot be read, or is neither.
    """
    path = Path(path)
    return WildChatReader(path) if path.is_dir() or path.suffix == ".parquet" else load_sharegpt(path)
