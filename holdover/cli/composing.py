"""Options of ``serve`` for chunks, and how prompts are composed of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from holdover.engine.chunks.settings import ChunkSettings

# as `holdover.chunks` has them, whose import takes torch's seconds
SelectorName = Literal["cacheblend", "epic", "prophetkv", "seam", "all", "none"]
InitialiserName = Literal["last", "random", "exact", "zero", "seams"]
WindowName = Literal["stream", "context"]
ModeName = Literal["auto", "on", "off"]
_PANEL = "Chunks"


class ExtraName(StrEnum):
    """What may be kept of a chunk beside its rows and state; a list of options takes no Literal."""

    TRANSITIONS = "transitions"
    BODIES = "bodies"
    INPUTS = "inputs"


Mode = Annotated[
    ModeName,
    typer.Option(
        "--chunks",
        rich_help_panel=_PANEL,
        help="Compose prompts of chunks as the other flags say (on), as a passed gate of these weights says, in full "
        "without one (auto), or never (off).",
    ),
]
Selector = Annotated[
    SelectorName,
    typer.Option("--chunk-selector", rich_help_panel=_PANEL, help="Which tokens of chunks are run again in a prompt."),
]
Initialiser = Annotated[
    InitialiserName,
    typer.Option(
        "--chunk-initialiser",
        rich_help_panel=_PANEL,
        help="Which recurrent state a prompt begins with; exact needs --chunk-extras transitions, seams needs bodies.",
    ),
]
Ratio = Annotated[
    float,
    typer.Option(
        "--chunk-ratio", min=0, max=1, rich_help_panel=_PANEL, help="Share of the chunks' tokens that may be run again."
    ),
]
ConvWindow = Annotated[
    WindowName,
    typer.Option(
        "--chunk-window",
        rich_help_panel=_PANEL,
        help="What those see in their conv windows: each other, or the tokens before them (needs inputs).",
    ),
]
Tokens = Annotated[
    int,
    typer.Option(
        "--chunk-tokens",
        min=1,
        rich_help_panel=_PANEL,
        help="Most tokens of a chunk: longer texts are cut.",
    ),
]
Rows = Annotated[
    int | None,
    typer.Option(
        "--chunk-rows",
        min=1,
        rich_help_panel=_PANEL,
        help="Tokens that chunks may hold; half of what fits if unset.",
    ),
]
Extras = Annotated[
    list[ExtraName] | None,
    typer.Option(
        "--chunk-extras", rich_help_panel=_PANEL, help="Kept of every chunk beside its rows and state; may be repeated."
    ),
]
ExtraBytes = Annotated[
    str, typer.Option("--chunk-extra-bytes", rich_help_panel=_PANEL, help="What those may take in all.")
]


@dataclass(frozen=True)
class Composing:
    """How prompts are composed of chunks, and the room for those, as the user wrote it."""

    mode: ModeName = "on"
    selector: SelectorName = "epic"
    initialiser: InitialiserName = "last"
    ratio: float = 0.2
    window: WindowName = "stream"
    tokens: int = 512
    rows: int | None = None
    extras: tuple[ExtraName, ...] = ()
    extra_bytes: str = "1GiB"

    def settings(self) -> ChunkSettings:
        """The engine's form.

        Raises:
            ConfigError: they cannot be used.
        """
        from holdover.chunks import ChunkOptions
        from holdover.engine.chunks.settings import ChunkSettings
        from holdover.engine.memory import parse_bytes

        extras = ChunkOptions(**dict.fromkeys(self.extras, True))
        said = {name: value for name, value in asdict(self).items() if name != "mode"}
        return ChunkSettings(**said | {"extras": extras, "extra_bytes": parse_bytes(self.extra_bytes)})
