"""What a request says of its chunks: where they stand, what is recomputed, and what the recurrent state begins with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from holdover.chunks import (
    INITIALISERS,
    Assembly,
    Chunk,
    ChunkOptions,
    Initialiser,
    Repair,
    Text,
    composition_salt,
    seam_length,
)
from holdover.chunks.initialiser import Zero
from holdover.chunks.selectors import SELECTORS, SelectionContext, Selector
from holdover.errors import RequestError

if TYPE_CHECKING:
    from holdover.arch.layout import StateLayout

# what recomputed tokens see in their conv windows: each other, or the tokens that stand before them
Window = Literal["stream", "context"]
# a part of a context: a chunk, or text as such or as token ids
Part = Chunk | str | Iterable[int]
# not an `Initialiser`: it runs tokens
SEAMS = "seams"
# what has to be kept of chunks for an initialiser
_KEPT = {"exact": "transitions", SEAMS: "bodies"}


@dataclass(frozen=True)
class Composition:
    """A prompt over chunks, and how it is to be composed.

    Attributes:
        assembly: its layout.
        selector: which tokens of chunks are recomputed.
        initialiser: which recurrent state it begins with.
        ratio: share of the chunks' tokens that the selector may choose.
        window: what recomputed tokens see in their conv windows.
        runs_seams: whether the first tokens of every chunk are run in their place, and the maps of the others applied
            between them (with the initialiser ``zero``): the exact composition of states, seams included.
        why: why the engine runs all of it, whatever the request says; empty where it does not.
    """

    assembly: Assembly
    selector: Selector
    initialiser: Initialiser
    ratio: float
    window: Window = "stream"
    runs_seams: bool = False
    why: str = ""

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Tokens of every chunk, in order."""
        return tuple(self.assembly.tokens[start:stop] for start, stop in self.assembly.chunks)

    def seams(self, layout: StateLayout) -> tuple[int, ...]:
        """Positions of the tokens that are run as seams, ascending; none unless they are."""
        if not self.runs_seams:
            return ()
        reach = seam_length(layout)
        return tuple(p for start, stop in self.assembly.chunks for p in range(start, min(stop, start + reach)))

    def choose(self, context: SelectionContext, layout: StateLayout) -> Repair:
        """Let the selector choose; seams are recomputed whatever it says."""
        return self.assembly.repair(sorted({*self.selector.select(context), *self.seams(layout)}))

    def salt(self, repair: Repair) -> str:
        """Salt of what is computed on top of ``repair``."""
        return composition_salt(repair, SEAMS if self.runs_seams else self.initialiser.name, self.window)


def compose(
    parts: Sequence[Part],
    query: str | Iterable[int],
    encode: Callable[[str | Iterable[int]], tuple[int, ...]],
    *,
    selector: str | Selector,
    initialiser: str | Initialiser,
    ratio: float,
    window: Window,
    extras: ChunkOptions,
) -> Composition:
    """Validate what a request says.

    Args:
        parts: the context: chunks, and text around them.
        query: what follows.
        encode: token ids of a part.
        selector: a name, or a selector of the caller's own.
        initialiser: likewise.
        ratio: share of the chunks' tokens to recompute.
        window: what recomputed tokens see in their conv windows.
        extras: what is kept of chunks.

    Raises:
        RequestError: a name or a number cannot be used, a chunk or the query is empty, or there is no chunk.
    """
    check_choice(selector, initialiser, ratio, window, extras)
    context = [part if isinstance(part, Chunk) else Text(encode(part)) for part in parts]
    runs_seams = initialiser == SEAMS
    if runs_seams:
        initialiser = Zero()
    return Composition(
        Assembly.of(context, encode(query)),
        SELECTORS[selector]() if isinstance(selector, str) else selector,
        INITIALISERS[initialiser]() if isinstance(initialiser, str) else initialiser,
        ratio,
        window,
        runs_seams,
    )


def check_choice(
    selector: str | Selector, initialiser: str | Initialiser, ratio: float, window: str, extras: ChunkOptions
) -> None:
    """Raise RequestError unless all of it is known, and chunks are kept with what it takes.

    Only whoever composes knows whether a window of true predecessors needs inputs that are not kept.
    """
    for param, value, known in (
        ("selector", selector, [*SELECTORS]),
        ("initialiser", initialiser, [*INITIALISERS, SEAMS]),
        ("window", window, [*get_args(Window)]),
    ):
        if isinstance(value, str) and value not in known:
            raise RequestError(f"{param} must be one of {', '.join(known)}, got {value!r}", param=param)
    if not 0 <= ratio <= 1:
        raise RequestError(f"ratio must be between 0 and 1, got {ratio}", param="ratio")
    if initialiser == SEAMS and window != "stream":
        raise RequestError(f"with seams run again the window must be stream, got {window!r}", param="window")
    kept = _KEPT.get(initialiser) if isinstance(initialiser, str) else None
    if kept is not None and not getattr(extras, kept):
        raise RequestError(f"initialiser {initialiser} needs chunks that are kept with {kept}", param="initialiser")
