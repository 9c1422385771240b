"""Which reader a file of recorded conversations needs."""

from __future__ import annotations

from pathlib import Path

from holdover.evaluation.traces.reader import Reader
from holdover.evaluation.traces.sharegpt import load_sharegpt
from holdover.evaluation.traces.wildchat import WildChatReader


def open_recordings(path: str | Path) -> Reader:
    """Conversations of a file: WildChat's if it is a ``.parquet`` file or a directory of them, else ShareGPT's JSON.

    Raises:
        HoldoverError: it cannot be read, or is neither.
    """
    path = Path(path)
    return WildChatReader(path) if path.is_dir() or path.suffix == ".parquet" else load_sharegpt(path)
