"""What a decoder is: it advances the logs of a batch of slots by one forward, and counts what it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from holdover.engine.step import Advance, Span
from holdover.state import DeferredLog


class Decoded(NamedTuple):
    """What a decode forward gave.

    Attributes:
        logits: fp32 ``[B, T, vocabulary]``; good until the next forward.
        advanced: recurrent layers that wrote both parts of their state.
        appended: attention layers that handed their keys and values over.
        hidden: the model's final hidden states ``[B, T, hidden]`` where a head drafts from them; good as long.
    """

    logits: torch.Tensor
    advanced: set[int]
    appended: set[int]
    hidden: torch.Tensor | None = None


@dataclass
class DecodeStats:
    """Running totals.

    Attributes:
        forwards: by how they advanced the state: ``dense``, ``defer``, ``drain`` and ``draft``.
        replays: forwards that replayed a CUDA graph.
        captures: graphs that were captured.
        folds: slots whose log was folded by a forward.
        phases_max: most different log lengths that met in one forward.
        mixed: forwards in which three or more did.
    """

    forwards: Counter[str] = field(default_factory=lambda: Counter(dense=0, defer=0, drain=0, draft=0))
    replays: int = 0
    captures: int = 0
    folds: int = 0
    phases_max: int = 0
    mixed: int = 0

    def count(self, advance: Advance, log: DeferredLog, slots: Sequence[int], tokens: int) -> None:
        """A forward of ``tokens`` tokens is about to advance ``slots`` so."""
        phases = len({log.length(slot) for slot in slots})
        self.forwards[advance.value] += 1
        self.folds += sum(log.folds(slot, drafts=advance.drafts(tokens)) for slot in slots)
        self.phases_max = max(self.phases_max, phases)
        self.mixed += phases >= 3


class Decoder(Protocol):
    """Advances the logs of slots."""

    stats: DecodeStats

    @property
    def nbytes(self) -> int:
        """Bytes of its own buffers."""

    def warm_up(self) -> None:
        """Do now what would make the first forwards slow."""

    def run(self, spans: Sequence[Span], advance: Advance) -> Decoded:
        """Run every span's tokens: one of each, or with `Advance.DRAFT` equally many of each.

        Mutates the rows of the tokens, the slots' logs and, where one is full, their bases.
        """
