"""What goes into the engine and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdover.engine.chunks.request import Composition
from holdover.engine.sampling import SamplingParams, TokenLogprob

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Request:
    """One sequence to generate.

    Attributes:
        id: unique among the requests in the engine.
        prompt: token ids, at least one.
        params: resolved sampling parameters.
        salt: tenant; requests of different salts never share cached state.
        use_cache: False to neither resume from the cache nor leave anything in it.
        exact: True to resume only from states that no lossy restore has touched.
        boundaries: depths within the prompt up to which the next turn is sure to repeat it.
        checkpoint_at: depths at which the caller wants a checkpoint.
        composition: how the prompt is composed of chunks; None for a prompt without any.
    """

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    salt: str = ""
    use_cache: bool = True
    exact: bool = False
    boundaries: tuple[int, ...] = ()
    checkpoint_at: tuple[int, ...] = ()
    composition: Composition | None = None


@dataclass(frozen=True)
class CacheReport:
    """What the cache gave a request, and why not more.

    Attributes:
        prompt_tokens: tokens of the prompt.
        kv_depth: leading tokens whose KV rows were present.
        state_depth: leading tokens that were not computed again: the depth of the resumed checkpoint.
        tier: where the checkpoint was restored from (``native`` or ``compressed``), or None.
        source: where it was brought up from just before (``host`` or ``disk``), or None.
        lineage: how the resumed state came to be, or None.
        checkpoint_bytes: bytes of the checkpoint where it was.
        omitted: fraction of the state's units that it left out.
        refresh_tokens: tokens replayed to recover those.
        refresh_seconds: time that took.
        reused: tokens whose rows were taken from chunks.
        recomputed: tokens of chunks that were run again.
        new: tokens of a prompt over chunks that were run and stand in none of them.
        reason: the outcome in words.
    """

    prompt_tokens: int
    kv_depth: int
    state_depth: int
    reason: str
    tier: str | None = None
    source: str | None = None
    lineage: str | None = None
    checkpoint_bytes: int = 0
    omitted: float = 0.0
    refresh_tokens: int = 0
    refresh_seconds: float = 0.0
    reused: int = 0
    recomputed: int = 0
    new: int = 0


@dataclass(frozen=True)
class Timing:
    """Seconds, from the moment the request was submitted.

    Attributes:
        queued: until it was first given a slot.
        first_token: until its first token (TTFT); None if it had none.
        total: until it ended.
    """

    queued: float
    first_token: float | None
    total: float


@dataclass(frozen=True)
class Output:
    """A finished request.

    Attributes:
        request_id: the request's id.
        prompt_token_ids: its prompt.
        token_ids: tokens generated, an end token included.
        text: their text, without end tokens and without a stop string.
        finish_reason: why it ended.
        cache: what the cache gave it.
        timing: when.
        logprobs: one entry a generated token, if asked for.
        prompt_logprobs: one entry a prompt token (None for the first), if asked for.
        error: what went wrong, when ``finish_reason`` is ``error``.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    cache: CacheReport
    timing: Timing
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Update:
    """What one engine step added to a request.

    Attributes:
        request_id: the request's id.
        token_ids: new tokens.
        text: new text; may lag behind the tokens while a character or a stop string is incomplete.
        logprobs: one entry a new token, if asked for.
        output: the whole, with the last update.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] | None = None
    output: Output | None = None
