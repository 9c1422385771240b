"""Drafts of a decode step: proposed for each sequence, verified for all of them in one forward.

A draft is a token, not a distribution: the engine samples every position as it would without drafts and goes on for
as long as the sample is the draft. So what is generated has the same distribution, and with a seed is the same, as
without speculation; only the rounding of a forward of several tokens differs from that of one.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from holdover.engine.sequence import Sequence

Speculation = Literal["off", "ngram", "mtp"]

# share of a batch that must have drafts: the others pay for the verification and gain nothing
_LEAST_SHARE = 0.25


class Proposer(Protocol):
    """Guesses what comes next."""

    def propose(self, sequences: Tokens[Sequence], most: int) -> list[list[int]]:
        """Up to ``most`` tokens for each sequence, which has rows for them already."""

    def observe(self, sequences: Tokens[Sequence], counts: Tokens[int], hidden: torch.Tensor) -> None:
        """See what a forward made of the last ``counts[i]`` computed tokens of each sequence; nothing by default.

        The token after them is known, but for a sequence that is about to end with an error.

        Args:
            sequences: all in the midst of their prompts, or all with nothing but the next token left to compute.
            counts: tokens that the forward ran of each sequence, rejected drafts left out.
            hidden: the model's final hidden states ``[B, T, hidden]``; those of sequence ``i`` are its first
                ``counts[i]``.
        """
        return


@dataclass
class SpeculationStats:
    """Running totals.

    Attributes:
        verifications: forwards that verified drafts.
        drafted: tokens that were proposed and verified.
        accepted: those of them that were generated.
    """

    verifications: int = 0
    drafted: int = 0
    accepted: int = 0


class Speculator:
    """Decides what a decode step verifies.

    Args:
        proposer: makes drafts.
        tokens: drafts of a sequence in one step.
        max_context: most tokens of a sequence.
    """

    def __init__(self, proposer: Proposer, tokens: int, max_context: int) -> None:
        self.tokens = tokens
        self.stats = SpeculationStats()
        self._proposer = proposer
        self._max_context = max_context

    def fits(self, sequences: Tokens[Sequence]) -> bool:
        """Whether every sequence's context has room for drafts."""
        return all(s.computed + 1 + self.tokens <= self._max_context for s in sequences)

    def drafts(self, sequences: Tokens[Sequence]) -> list[list[int]] | None:
        """Drafts of each sequence, some of them perhaps none; None where plain decode is the better step."""
        proposed = self._proposer.propose(sequences, self.tokens)
        # where a state is wanted at the end of the prompt, nothing may run past it
        found = [draft if s.next_checkpoint() is None else [] for s, draft in zip(sequences, proposed, strict=True)]
        return found if sum(map(bool, found)) >= _LEAST_SHARE * len(found) else None

    def observe(self, sequences: Tokens[Sequence], counts: Tokens[int], hidden: torch.Tensor | None) -> None:
        """Show the proposer a forward, if the model hands out what it needs; see `Proposer.observe`."""
        if hidden is not None:
            self._proposer.observe(sequences, counts, hidden)

    def count(self, drafts: Tokens[Tokens[int]], kept: Tokens[int]) -> None:
        """A forward verified ``drafts``; of each sequence's tokens, its last one included, ``kept`` stay."""
        self.stats.verifications += 1
        self.stats.drafted += sum(map(len, drafts))
        self.stats.accepted += sum(min(count - 1, len(draft)) for draft, count in zip(drafts, kept, strict=True))
