"""What a sequence makes of the logits that a forward gave it: its next token, and the log probabilities asked for."""

from __future__ import annotations

import torch

from holdover.engine.sampling import TokenLogprob, choose, logprobs_of
from holdover.engine.sequence import Sequence


def next_token(sequence: Sequence, best: int, logits: torch.Tensor) -> tuple[int, tuple[TokenLogprob, ...] | None]:
    """The next token, forced or sampled, and its log probability if that was asked for.

    Mutates the sequence's generator and its list of log probabilities.

    Args:
        sequence: has nothing left to compute.
        best: the most probable token.
        logits: fp32 ``[vocabulary]``.
    """
    params = sequence.request.params
    if (index := sequence.num_generated) < len(params.forced):
        token = params.forced[index]
    else:
        token = choose(logits, best, params, sequence.generator)
    if params.logprobs is None:
        return token, None
    reported = tuple(logprobs_of(logits.unsqueeze(0), [token], params.logprobs))
    sequence.logprobs.extend(reported)
    return token, reported


def record_prompt_logprobs(sequence: Sequence, logits: torch.Tensor, count: int) -> None:
    """Log probabilities of the prompt tokens that follow the ``count`` tokens just computed."""
    top = sequence.request.params.prompt_logprobs
    if top is None:
        return
    # what was recorded before a preemption is not recorded again
    start, known = sequence.computed + 1, len(sequence.prompt_logprobs)
    targets = sequence.request.prompt[known : start + count]
    if targets:
        first = known - start
        sequence.prompt_logprobs += logprobs_of(logits[first : first + len(targets)], targets, top)
