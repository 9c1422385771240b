"""What a selector is told of an assembled prompt, and the interface of all selectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from holdover.chunks.assembly import Assembly

# what has to be run before a selector can choose; its cost is part of the time to the first token
Probe = Literal["none", "context", "query"]


class Deviation(NamedTuple):
    """One attention layer's values, as cached and as a run of the context gives them; rows by position.

    Attributes:
        cached: rows of the assembled context ``[C, heads, d_v]``; those of text are not read.
        fresh: the same, computed ``[C, heads, d_v]``.
    """

    cached: Tensor
    fresh: Tensor


class QueryAttention(NamedTuple):
    """One attention layer as the query sees the assembled context.

    For latent attention: absorbed queries over latent and shared key part, joined in one head.

    Attributes:
        queries: rotated, ``[Q, query_heads, d_k]``.
        keys: rotated, rows by position of the context ``[C, heads, d_k]``; each head serves consecutive query heads.
        scale: factor on the scores.
    """

    queries: Tensor
    keys: Tensor
    scale: float


@dataclass(frozen=True)
class SelectionContext:
    """One request, as selectors see it. Positions are those of the prompt; its context is ``0 .. C - 1``.

    Attributes:
        assembly: where chunks, text and query stand.
        ratio: share of the chunks' tokens to recompute, 0 to 1.
        deviation: what a ``context`` probe found at the first attention layer with a layer below it.
        attention: what a ``query`` probe found, by attention layer.
    """

    assembly: Assembly
    ratio: float
    deviation: Deviation | None = None
    attention: Mapping[int, QueryAttention] = field(default_factory=dict)

    @property
    def candidates(self) -> tuple[int, ...]:
        """Positions that can be selected, ascending: those within chunks."""
        return self.assembly.cached

    @property
    def budget(self) -> int:
        """Number of positions to select, m = rN to the nearest."""
        return round(self.ratio * len(self.candidates))

    @property
    def seams(self) -> tuple[int, ...]:
        """First positions of the chunks that something stands before; one at position 0 is what a prefill makes it."""
        return tuple(placed.start for placed in self.assembly.chunks if placed.start)

    def highest(self, scores: Tensor) -> tuple[int, ...]:
        """The budget's candidates of highest score, ascending; of equals, the first.

        Args:
            scores: by position, ``[C]``.
        """
        candidates = torch.tensor(self.candidates)
        order = scores.cpu()[candidates].sort(descending=True, stable=True).indices[: self.budget]
        return tuple(sorted(candidates[order].tolist()))


class Selector(Protocol):
    """Chooses which tokens of chunks are recomputed. Keeps nothing between calls."""

    probe: ClassVar[Probe]

    def select(self, context: SelectionContext) -> tuple[int, ...]:
        """Positions to recompute, ascending, all of them candidates."""
