"""What an engine's operator decides about chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdover.chunks import ChunkOptions
from holdover.engine.chunks.request import Window, check_choice
from holdover.errors import ConfigError, RequestError

# what becomes of a prompt over chunks: it is composed, prefilled in full as if it had none, or refused
ChunkUse = Literal["compose", "full", "refuse"]

DEFAULT_CHUNK_TOKENS = 512
_EXTRA_BYTES = 1 << 30
_NO_EXTRAS = ChunkOptions()


@dataclass(frozen=True)
class ChunkSettings:
    """Room for chunks, and how prompts are composed of them unless a request says otherwise.

    Attributes:
        tokens: most tokens of a chunk where a text is cut into chunks.
        rows: KV rows that chunks may own; None for half of all.
        extra_bytes: bytes that their extras may take.
        extras: what is kept of a chunk beyond its rows and its state.
        selector: which tokens of chunks are recomputed.
        initialiser: which recurrent state a prompt begins with.
        ratio: share of the chunks' tokens to recompute.
        window: what recomputed tokens see in their conv windows.
        use: what becomes of prompts over chunks.
        why: what clients hear of it where they are prefilled in full.
    """

    tokens: int = DEFAULT_CHUNK_TOKENS
    rows: int | None = None
    extra_bytes: int = _EXTRA_BYTES
    extras: ChunkOptions = _NO_EXTRAS
    selector: str = "epic"
    initialiser: str = "last"
    ratio: float = 0.2
    window: Window = "stream"
    use: ChunkUse = "compose"
    why: str = ""

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ConfigError(f"chunks have at least 1 token, not at most {self.tokens}")
        if (self.rows is not None and self.rows < 1) or self.extra_bytes < 0:
            raise ConfigError(f"chunks cannot have {self.rows} rows and {self.extra_bytes} bytes of extras")
        try:
            check_choice(self.selector, self.initialiser, self.ratio, self.window, self.extras)
        except RequestError as error:
            raise ConfigError(f"chunks: {error}") from None


DEFAULT_SETTINGS = ChunkSettings()
