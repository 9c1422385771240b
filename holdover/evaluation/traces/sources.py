"""Which reader a file of recorded conversations needs, and the recording that comes with Holdover."""

from __future__ import annotations

from pathlib import Path

from holdover.evaluation.traces.reader import Reader
from holdover.evaluation.traces.sharegpt import load_sharegpt
from holdover.evaluation.traces.wildchat import WildChatReader

# Wikipedia's articles pasted into messages: no people's conversations (`article_trace.NOTICE` beside it)
BUNDLED = Path(__file__).parent / "data" / "article_trace.json"


def open_recordings(path: str | Path) -> Reader:
    """Conversations of a file: WildChat's if it is a ``.parquet`` file or a directory of them, else ShareGPT's JSON.

    Raises:
        HoldoverError: it cannot be read, or is neither.
    """
    path = Path(path)
    return WildChatReader(path) if path.is_dir() or path.suffix == ".parquet" else load_sharegpt(path)
