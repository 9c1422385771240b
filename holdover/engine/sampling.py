"""How the next token is chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from holdover.engine.grammar import Grammar
from holdover.errors import RequestError


@dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled. What is None follows the model's generation defaults.

    Attributes:
        max_tokens: most tokens to generate; None for as many as there is room for, 0 to compute the prompt alone.
        temperature: 0 for greedy.
        top_p: keep the smallest set of tokens whose probability reaches this.
        top_k: keep this many tokens; 0 for all.
        min_p: keep tokens at least this probable, relative to the most probable one.
        frequency_penalty: taken from a token's logit for each time it was generated.
        presence_penalty: taken from it once if it was generated.
        repetition_penalty: divides the positive logit of a token that the prompt or the generated text has, and
            multiplies a negative one; 1 for none.
        logit_bias: what is added to the logits of some tokens, as ``(token, bias)``.
        grammar: what the generated text must match; None for anything.
        seed: makes sampling reproducible.
        stop: strings that end the text; not part of it.
        stop_token_ids: tokens that end the text, beside the model's own end tokens.
        ignore_eos: go on past the model's end tokens.
        logprobs: how many alternatives to report with each token's log probability; None for no report.
        prompt_logprobs: the same for the prompt's tokens; such a request does not resume from the cache.
        forced: tokens to take instead of sampling, in order, before sampling goes on (replay of recorded text).
        skip_special_tokens: leave special tokens out of the text.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: Grammar | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    forced: tuple[int, ...] = ()
    skip_special_tokens: bool = True

    @property
    def adjusts(self) -> bool:
        """Whether tokens are chosen by other logits than the model's."""
        penalises = self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0
        return bool(penalises or self.logit_bias)

    def resolve(self, defaults: SamplingDefaults) -> SamplingParams:
        """Fill in the model's defaults and validate.

        Raises:
            RequestError: a value is out of range; the message names it and the range.
        """
        params = replace(
            self,
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            top_p=defaults.top_p if self.top_p is None else self.top_p,
            top_k=defaults.top_k if self.top_k is None else self.top_k,
            min_p=defaults.min_p if self.min_p is None else self.min_p,
        )
        params._validate()
        return params

    def _validate(self) -> None:
        _between("temperature", self.temperature, 0.0, 100.0)
        _between("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _between("min_p", self.min_p, 0.0, 1.0)
        _between("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _between("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _between("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_low=True)
        for _, bias in self.logit_bias:
            _between("logit_bias", bias, -100.0, 100.0)
        _at_least("top_k", self.top_k, 0)
        _at_least("max_tokens", self.max_tokens, 0)
        _at_least("logprobs", self.logprobs, 0)
        _at_least("prompt_logprobs", self.prompt_logprobs, 0)
        if any(not text for text in self.stop):
            raise RequestError("stop must not contain an empty string", param="stop")


@dataclass(frozen=True)
class SamplingDefaults:
    """What a model's generation configuration asks for. Greedy unless it says otherwise."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0


class TokenLogprob(NamedTuple):
    """Log probability of one token under the model, before penalties, biases, temperature and truncation.

    Attributes:
        token: the token.
        logprob: its natural log probability.
        top: the most probable alternatives, as ``(token, logprob)``, most probable first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def adjust(logits: torch.Tensor, p: SamplingParams, prompt: torch.Tensor, generated: Sequence[int]) -> torch.Tensor:
    """Logits with penalties and biases applied; the argument stays as it is.

    Penalties as OpenAI defines them (by generated tokens only); the repetition penalty is that of CTRL
    (arXiv:1909.05858, section 4.1), by all tokens.

    Args:
        logits: fp32 ``[vocabulary]``.
        p: the penalties and biases.
        prompt: the prompt's tokens, int64 ``[n]``; any may occur more than once.
        generated: the tokens after them.
    """
    adjusted = logits.clone()
    written = torch.tensor(generated, dtype=torch.int64, device=logits.device)
    if p.repetition_penalty != 1.0:
        seen = torch.cat([prompt.to(logits.device), written])
        values = adjusted[seen]
        # a token that occurs more than once is written more than once, with the same value
        adjusted[seen] = torch.where(values > 0, values / p.repetition_penalty, values * p.repetition_penalty)
    if (p.frequency_penalty or p.presence_penalty) and len(written):
        tokens, counts = written.unique(return_counts=True)
        adjusted[tokens] -= p.frequency_penalty * counts + p.presence_penalty
    if p.logit_bias:
        biased, biases = zip(*p.logit_bias, strict=True)
        at = torch.tensor(biased, device=logits.device)
        adjusted.index_add_(0, at, torch.tensor(biases, dtype=logits.dtype, device=logits.device))
    return adjusted


def logprobs_of(logits: torch.Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprob]:
    """Log probabilities of ``tokens`` under ``logits [n, vocabulary]`` (fp32), with ``top`` alternatives each."""
    scores = logits.log_softmax(dim=-1)
    chosen = scores.gather(1, torch.tensor(tokens, device=logits.device).unsqueeze(1)).squeeze(1).tolist()
    if top == 0:
        return [TokenLogprob(t, s, ()) for t, s in zip(tokens, chosen, strict=True)]
    values, ids = scores.topk(min(top, scores.shape[-1]), dim=-1)
    best = [tuple(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]
    return [TokenLogprob(t, s, b) for t, s, b in zip(tokens, chosen, best, strict=True)]


def _between(name: str, value: float | None, low: float, high: float, *, open_low: bool = False) -> None:
    if value is None:
        return
    if not math.isfinite(value) or not low <= value <= high or (open_low and value == low):
        bracket = "(" if open_low else "["
        raise RequestError(f"{name} must be in {bracket}{low:g}, {high:g}], got {value}", param=name)


def _at_least(name: str, value: int | None, low: int) -> None:
    if value is not None and value < low:
        raise RequestError(f"{name} must be at least {low}, got {value}", param=name)
