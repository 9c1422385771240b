"""The plan of one request over chunks: where every position's KV and state come from. Data only; nothing is run.

A prompt is a context of chunks and text (system prompt, template, separators) and then the query. Every position is
exactly one of: *kept* (its rows are copied from a chunk's, rotated to its place), *recomputed* (selected out of a
chunk; run again at its own place), or *new* (text and query, in no chunk; run at its place).

Text is recomputed with the selected tokens, in context order, whatever a selector says: it is in no cache, and states
that initialise know nothing of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from holdover.errors import RequestError


@dataclass(frozen=True)
class Text:
    """Tokens of the context that belong to no chunk; may be empty."""

    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Chunk:
    """Tokens that were, or can be, prefilled alone; at least one."""

    tokens: tuple[int, ...]


class Placed(NamedTuple):
    """Where a chunk stands in the prompt: positions ``start`` to ``stop``."""

    start: int
    stop: int


class Copy(NamedTuple):
    """Consecutive rows to copy out of a chunk.

    Attributes:
        chunk: which of the prompt's chunks, from 0; a chunk that occurs twice counts twice.
        source: position within the chunk, which is the one that its keys are rotated to.
        target: position in the prompt.
        length: number of rows.
    """

    chunk: int
    source: int
    target: int
    length: int

    @property
    def delta(self) -> int:
        """Positions by which the keys have to be rotated on."""
        return self.target - self.source


class Usage(NamedTuple):
    """Tokens of a prompt by what was done for them.

    Attributes:
        reused: rows taken from chunks as they are.
        recomputed: tokens of chunks that were run again.
        new: text and query.
    """

    reused: int
    recomputed: int
    new: int


@dataclass(frozen=True)
class Assembly:
    """A prompt's layout.

    Attributes:
        tokens: all of them.
        chunks: where the chunks stand, in order.
        query: positions of the query, the last ones.
    """

    tokens: tuple[int, ...]
    chunks: tuple[Placed, ...]
    query: range

    @classmethod
    def of(cls, context: Sequence[Text | Chunk], query: Sequence[int]) -> Assembly:
        """Lay a prompt out.

        Raises:
            RequestError: a chunk or the query is empty, or there is no chunk.
        """
        tokens: list[int] = []
        chunks = []
        for segment in context:
            if isinstance(segment, Chunk):
                check_chunk(segment.tokens)
                chunks.append(Placed(len(tokens), len(tokens) + len(segment.tokens)))
            tokens += segment.tokens
        if not chunks:
            raise RequestError("the context has no chunk: send its text as an ordinary prompt", param="context")
        if not query:
            raise RequestError(
                "the query is empty: it needs at least one token, since the last token of the context was run as part "
                "of its chunk and may not be run twice",
                param="query",
            )
        return cls((*tokens, *query), tuple(chunks), range(len(tokens), len(tokens) + len(query)))

    @cached_property
    def cached(self) -> tuple[int, ...]:
        """Positions within chunks, ascending."""
        return tuple(position for placed in self.chunks for position in range(*placed))

    @cached_property
    def text(self) -> tuple[int, ...]:
        """Positions of the context within no chunk, ascending."""
        cached = set(self.cached)
        return tuple(position for position in range(self.query.start) if position not in cached)

    @property
    def copies(self) -> tuple[Copy, ...]:
        """Every chunk whole: what a probe of the context reads."""
        return tuple(Copy(i, 0, start, stop - start) for i, (start, stop) in enumerate(self.chunks))

    def chunk_at(self, position: int) -> int:
        """Which chunk a position of `cached` lies in, from 0."""
        return bisect_right(self.chunks, position, key=lambda placed: placed.start) - 1

    def chunks_at(self, positions: Sequence[int]) -> list[int]:
        """The same for many positions."""
        starts = torch.tensor([placed.start for placed in self.chunks])
        return (torch.searchsorted(starts, torch.tensor(positions, dtype=torch.int64), right=True) - 1).tolist()

    def repair(self, selected: Iterable[int]) -> Repair:
        """Recompute ``selected`` positions of chunks, and the text.

        Raises:
            ValueError: they are not ascending positions within chunks.
        """
        chosen = tuple(selected)
        if list(chosen) != sorted(set(chosen)) or not set(chosen) <= set(self.cached):
            raise ValueError(f"selected positions must be ascending and within chunks, not {list(chosen)[:8]}...")
        return Repair(self, chosen)


@dataclass(frozen=True)
class Repair:
    """What of an assembled prompt is kept and what is run.

    Attributes:
        assembly: the prompt.
        selected: positions within chunks to recompute, ascending.
    """

    assembly: Assembly
    selected: tuple[int, ...]

    @cached_property
    def positions(self) -> frozenset[int]:
        """Positions of the context to run: what was selected, and text."""
        return frozenset((*self.assembly.text, *self.selected))

    @cached_property
    def runs(self) -> tuple[range, ...]:
        """Consecutive positions of the context to run, in the order in which they are run (LinearKV, Alg. 1)."""
        return tuple(_runs(sorted(self.positions)))

    @cached_property
    def copies(self) -> tuple[Copy, ...]:
        """Rows that are kept, in context order."""
        chosen, chunks = set(self.selected), self.assembly.chunks
        kept = [position for position in self.assembly.cached if position not in chosen]
        runs = _runs(kept, cuts=[placed.start for placed in chunks])
        return tuple(
            Copy(i, run.start - chunks[i].start, run.start, len(run))
            for i, run in zip(self.assembly.chunks_at([run.start for run in runs]), runs, strict=True)
        )

    @property
    def is_full(self) -> bool:
        """Whether nothing is kept. From an empty state, running everything in order is an ordinary prefill."""
        return len(self.selected) == len(self.assembly.cached)

    @property
    def ratio(self) -> float:
        """Effective share of the chunks' tokens that is recomputed, r = |U| / N."""
        return len(self.selected) / len(self.assembly.cached)

    @property
    def usage(self) -> Usage:
        """Tokens by what is done for them; together the whole prompt."""
        reused = len(self.assembly.cached) - len(self.selected)
        return Usage(reused, len(self.selected), len(self.assembly.text) + len(self.assembly.query))


def check_chunk(tokens: Sequence[int]) -> None:
    """Raise RequestError unless a chunk has a token."""
    if not tokens:
        raise RequestError("a chunk is empty: it needs at least one token", param="context")


def _runs(positions: Sequence[int], cuts: Sequence[int] = ()) -> list[range]:
    """Ascending positions as maximal ranges of consecutive ones, none of which goes on over a position of ``cuts``."""
    if not positions:
        return []
    places = torch.tensor(positions)
    begins = (places.diff() != 1) | torch.isin(places[1:], torch.tensor(cuts, dtype=torch.int64))
    # where each begins among the positions, and where the last one ends
    bounds = torch.cat([torch.zeros(1, dtype=torch.int64), begins.nonzero()[:, 0] + 1, torch.tensor([len(places)])])
    starts, lengths = places[bounds[:-1]].tolist(), bounds.diff().tolist()
    return [range(start, start + length) for start, length in zip(starts, lengths, strict=True)]
