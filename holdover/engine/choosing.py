"""What a sequence makes of the logits that a forward gave it: its next tokens, and the log probabilities asked for."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from typing import NamedTuple, Protocol

import torch

from holdover.engine.drawing import Wanted, draw
from holdover.engine.sampling import TokenLogprob, adjust, logprobs_of
from holdover.engine.sequence import Sequence
from holdover.errors import HoldoverError, RequestError

logger = logging.getLogger(__name__)


class Choice(NamedTuple):
    """What one forward added to one sequence.

    Attributes:
        sequence: the sequence, which has the tokens already.
        tokens: its new tokens.
        text: their text, as far as it is certain.
        logprobs: one entry a token, if asked for.
        reason: why the sequence ends with them, if it does.
        error: what went wrong, if something did.
    """

    sequence: Sequence
    tokens: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] | None = None
    reason: str | None = None
    error: Exception | None = None

    @property
    def kept(self) -> int:
        """Tokens of a verified span that stay: the one that was certain, and the drafts that were chosen."""
        return max(1, len(self.tokens))


class Chooser(Protocol):
    """Finds the next tokens of sequences from logits, as `choose_tokens` does."""

    def __call__(
        self,
        sequences: Tokens[Sequence],
        logits: torch.Tensor,
        drafts: Tokens[Tokens[int]] | None = None,
        first: Callable[[Sequence, torch.Tensor], None] | None = None,
    ) -> list[Choice]:
        """The next tokens of each. Mutates the sequences."""


def choose_tokens(
    sequences: Tokens[Sequence],
    logits: torch.Tensor,
    drafts: Tokens[Tokens[int]] | None = None,
    first: Callable[[Sequence, torch.Tensor], None] | None = None,
) -> list[Choice]:
    """The next tokens of sequences that have nothing left to compute. Mutates the sequences.

    An error ends one sequence's choice, not the others'.

    Args:
        sequences: in the batch's order.
        logits: fp32 ``[B, T, vocabulary]`` of the last token and ``T - 1`` drafts.
        drafts: of each sequence, at most ``T - 1``; None for none.
        first: is shown the logits of a sequence's first token.
    """
    # once for all of them, since it waits for the device
    largest, best = (x.tolist() for x in logits.max(dim=-1))
    drawn = _drawn(sequences, logits)
    chosen = []
    for row, sequence in enumerate(sequences):
        walk = _Walk(sequence)
        try:
            if first is not None and not sequence.num_generated and math.isfinite(largest[row][0]):
                first(sequence, logits[row, 0])
            likely = drawn.get(row, best[row])
            walk.run(row, largest[row], likely, logits, drafts[row] if drafts is not None else ())
        except RequestError as error:
            # the client's own doing, such as a grammar that cannot be followed
            logger.info("request %s got no next token: %s", sequence.request.id, error)
            walk.error = error
        except Exception as error:
            logger.exception("request %s got no next token", sequence.request.id)
            walk.error = error
        chosen.append(walk.choice())
    return chosen


def _drawn(sequences: Tokens[Sequence], logits: torch.Tensor) -> dict[int, list[int]]:
    """By row, what each sequence that samples from the model's own logits would draw at each of its positions."""
    rows = [
        row
        for row, sequence in enumerate(sequences)
        if sequence.request.params.temperature and not _changes_logits(sequence)
    ]
    if not rows:
        return {}
    positions = logits.shape[1]
    wanted = [
        Wanted(sequences[row].request.params, sequences[row].uniforms[sequences[row].num_generated + i])
        for row in rows
        for i in range(positions)
    ]
    own = logits if len(rows) == len(sequences) else logits[rows]
    tokens = draw(own.flatten(0, 1), wanted)
    return {row: tokens[i * positions : (i + 1) * positions] for i, row in enumerate(rows)}


def _changes_logits(sequence: Sequence) -> bool:
    """Whether it chooses from others than the model's own."""
    return sequence.request.params.adjusts or sequence.constraint is not None


class _Walk:
    """Takes tokens one by one, on and on for as long as a draft turns out to be the token that is chosen."""

    __slots__ = ("_logprobs", "_reason", "_sequence", "_text", "_tokens", "error")

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self._tokens: list[int] = []
        self._text = ""
        self._logprobs: list[TokenLogprob] = []
        self._reason: str | None = None
        self.error: Exception | None = None

    def run(self, row: int, largest: list[float], likely: list[int], logits: torch.Tensor, drafts: Tokens[int]) -> None:
        sequence = self._sequence
        if sequence.max_tokens == 0:
            # it was run for its prompt alone
            self._reason = sequence.finish_reason()
            return
        for i in range(1 + len(drafts)):
            # a maximum is NaN as soon as one logit is
            if not math.isfinite(largest[i]):
                raise HoldoverError("the model's logits are not finite")
            token, reported = next_token(sequence, likely[i], logits, (row, i))
            self._text += sequence.take(token)
            self._tokens.append(token)
            self._logprobs += reported
            self._reason = sequence.finish_reason()
            if self._reason:
                self._text += sequence.text.finish()
                return
            if i < len(drafts) and token != drafts[i]:
                return

    def choice(self) -> Choice:
        reported = tuple(self._logprobs) if self._sequence.request.params.logprobs is not None else None
        return Choice(self._sequence, tuple(self._tokens), self._text, reported, self._reason, self.error)


def next_token(
    sequence: Sequence, likely: int, logits: torch.Tensor, at: tuple[int, int]
) -> tuple[int, list[TokenLogprob]]:
    """The next token, forced or sampled, and its log probability if that was asked for.

    Mutates the sequence's list of log probabilities.

    Args:
        sequence: has nothing left to compute.
        likely: the token that the model's own logits give it.
        logits: fp32 ``[B, T, vocabulary]``.
        at: which of them are the token's; only looked at where ``likely`` does not answer everything.
    """
    params = sequence.request.params
    if (index := sequence.num_generated) < len(params.forced):
        token = params.forced[index]
    elif _changes_logits(sequence):
        own = _own_logits(sequence, logits[at])
        wanted = Wanted(params, sequence.uniforms[index])
        token = draw(own.unsqueeze(0), [wanted])[0] if params.temperature else int(own.argmax())
    else:
        token = likely
    if params.logprobs is None:
        return token, []
    reported = logprobs_of(logits[at].unsqueeze(0), [token], params.logprobs)
    sequence.logprobs.extend(reported)
    return token, reported


def _own_logits(sequence: Sequence, logits: torch.Tensor) -> torch.Tensor:
    """Logits as the sequence's penalties, biases and grammar make them. Only what it has taken counts."""
    params = sequence.request.params
    own = adjust(logits, params, sequence.prompt_tokens, sequence.generated) if params.adjusts else logits
    if sequence.constraint is not None:
        own = own.masked_fill(sequence.constraint.forbidden().to(own.device), -math.inf)
    return own


def record_prompt_logprobs(sequence: Sequence, logits: torch.Tensor, row: int, count: int) -> None:
    """Log probabilities of the prompt tokens that follow the ``count`` tokens just computed, if asked for.

    Args:
        sequence: has not moved on to them yet.
        logits: fp32 ``[B, n, vocabulary]``.
        row: the sequence's place in the batch.
        count: tokens computed.
    """
    top = sequence.request.params.prompt_logprobs
    if top is None:
        return
    # what was recorded before a preemption is not recorded again
    start, known = sequence.computed + 1, len(sequence.prompt_logprobs)
    targets = sequence.request.prompt[known : start + count]
    if targets:
        first = known - start
        sequence.prompt_logprobs += logprobs_of(logits[row, first : first + len(targets)], targets, top)
