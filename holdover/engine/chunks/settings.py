"""What an engine's operator decides about chunks."""

from __future__ import annotations

from dataclasses import dataclass

from holdover.chunks import ChunkOptions
from holdover.engine.chunks.request import Window, check_choice
from holdover.errors import ConfigError, RequestError

_EXTRA_BYTES = 1 << 30
_NO_EXTRAS = ChunkOptions()


@dataclass(frozen=True)
class ChunkSettings:
    """Room for chunks, and how prompts are composed of them unless a request says otherwise.

    Attributes:
        rows: KV rows that chunks may own; None for half of all.
        extra_bytes: bytes that their extras may take.
        extras: what is kept of a chunk beyond its rows and its state.
        selector: which tokens of chunks are recomputed.
        initialiser: which recurrent state a prompt begins with.
        ratio: share of the chunks' tokens to recompute.
        window: what recomputed tokens see in their conv windows.
    """

    rows: int | None = None
    extra_bytes: int = _EXTRA_BYTES
    extras: ChunkOptions = _NO_EXTRAS
    selector: str = "epic"
    initialiser: str = "last"
    ratio: float = 0.2
    window: Window = "stream"

    def __post_init__(self) -> None:
        if (self.rows is not None and self.rows < 1) or self.extra_bytes < 0:
            raise ConfigError(f"chunks cannot have {self.rows} rows and {self.extra_bytes} bytes of extras")
        try:
            check_choice(self.selector, self.initialiser, self.ratio, self.window)
        except RequestError as error:
            raise ConfigError(f"chunks: {error}") from None


DEFAULT_SETTINGS = ChunkSettings()
