"""One forward of the engine's loop: prefill chunk, decode step or verification, and what each sequence makes of it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from holdover.engine.checkpoints import Checkpointer
from holdover.engine.choosing import Choice, Chooser, choose_tokens, record_prompt_logprobs
from holdover.engine.residence import Residence
from holdover.engine.runner import Runner
from holdover.engine.sequence import Sequence
from holdover.engine.speculation import Speculator
from holdover.engine.stats import EngineStats
from holdover.engine.step import Span
from holdover.errors import CapacityError


class Forwards:
    """Runs the next tokens of sequences that own what they need.

    Args:
        runner: the model on its pools.
        residence: gives drafts their rows.
        checkpoints: keeps states on the way.
        stats: counts forwards.
        speculator: proposes drafts for decode steps; None for none.
        first: is shown the logits of a sequence's first token.
        choose: finds the next tokens.
    """

    def __init__(
        self,
        runner: Runner,
        residence: Residence,
        checkpoints: Checkpointer,
        stats: EngineStats,
        speculator: Speculator | None = None,
        first: Callable[[Sequence, torch.Tensor], None] | None = None,
        choose: Chooser = choose_tokens,
    ) -> None:
        self._runner = runner
        self._residence = residence
        self._checkpoints = checkpoints
        self._stats = stats
        self._speculator = speculator
        self._first = first
        self._choose = choose

    def run(self, sequences: list[Sequence], count: int) -> list[Choice]:
        """Run the next ``count`` tokens of each, or of decoding sequences the next one and drafts behind it.

        Returns:
            What was chosen for every sequence that has nothing left to compute.
        """
        drafts = self._drafts(sequences) if sequences[0].remaining == 1 else None
        if drafts is not None:
            choices, counts, hidden = self._verify(sequences, drafts)
        else:
            choices, hidden = self._advance(sequences, count)
            counts = [count] * len(sequences)
        # before a checkpoint hands the tokens' rows over to the cache
        if self._speculator is not None:
            self._speculator.observe(sequences, counts, hidden)
        self._checkpoints.take(sequences, counts)
        return choices

    def _advance(self, sequences: list[Sequence], count: int) -> tuple[list[Choice], torch.Tensor | None]:
        wants_all = sequences[0].request.params.prompt_logprobs is not None and count > 1
        result = self._runner.run([_span(s, count) for s in sequences], logits=None if wants_all else 1)
        logits, hidden = result.logits, result.hidden
        assert logits is not None
        self._stats.count_forward(len(sequences), count)
        for row, sequence in enumerate(sequences):
            if sequence.request.params.prompt_logprobs is not None:
                record_prompt_logprobs(sequence, logits, row, count)
            sequence.computed += count
        # a prefill has one sequence, and decoding ones all end here
        if sequences[0].remaining:
            return [], hidden
        return self._choose(sequences, logits[:, -1:], first=self._first), hidden

    def _verify(
        self, sequences: list[Sequence], drafts: list[list[int]]
    ) -> tuple[list[Choice], list[int], torch.Tensor | None]:
        assert self._speculator is not None
        most = self._speculator.tokens
        # forwards are rectangular: a sequence with fewer drafts has its last token repeated, and takes that back
        padded = [draft + [s.tokens[-1]] * (most - len(draft)) for s, draft in zip(sequences, drafts, strict=True)]
        spans = [_span(s, 1 + most, draft) for s, draft in zip(sequences, padded, strict=True)]
        verification = self._runner.verify(spans)
        choices = self._choose(sequences, verification.logits, drafts, first=self._first)
        counts = [choice.kept for choice in choices]
        verification.accept(counts)
        for sequence, kept in zip(sequences, counts, strict=True):
            sequence.computed += kept
        self._stats.count_decode(len(sequences), sum(counts))
        self._speculator.count(drafts, counts)
        return choices, counts, verification.hidden

    def _drafts(self, sequences: list[Sequence]) -> list[list[int]] | None:
        if self._speculator is None or not self._speculator.fits(sequences):
            return None
        try:
            self._residence.grow(sequences, 1 + self._speculator.tokens)
        except CapacityError:
            # drafts are not worth anybody's memory
            return None
        return self._speculator.drafts(sequences)


def _span(sequence: Sequence, count: int, drafts: list[int] | None = None) -> Span:
    start, place = sequence.computed, sequence.place
    tokens = sequence.tokens[start : start + count] + (drafts or [])
    return Span(place.lease.slot, tokens, start, place.rows)
