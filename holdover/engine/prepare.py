"""From what a caller asks to a sequence that the engine can run: the boundary where bad requests are refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from operator import index
from typing import Any, Protocol
from uuid import uuid4

from holdover.engine.request import Request
from holdover.engine.sampling import SamplingDefaults, SamplingParams
from holdover.engine.sequence import Sequence
from holdover.engine.text import Decoder, TextStream
from holdover.errors import RequestError


class TextModel(Decoder, Protocol):
    """The part of a tokenizer that requests need."""

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``."""


class Preparer:
    """Turns prompts into sequences.

    Args:
        tokenizer: the model's tokenizer.
        digest: identifies the model in cache keys.
        defaults: the model's sampling defaults.
        end_tokens: tokens that end a text.
        max_context: longest sequence that the model and the KV pool allow.
        vocab_size: token ids are below this.
    """

    def __init__(
        self,
        tokenizer: TextModel,
        *,
        digest: str,
        defaults: SamplingDefaults,
        end_tokens: frozenset[int],
        max_context: int,
        vocab_size: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_context = max_context
        self._digest = digest
        self._defaults = defaults
        self._end_tokens = end_tokens
        self._vocab_size = vocab_size
        self._numbers = itertools.count()

    def sequence(self, prompt: str | Iterable[int], params: SamplingParams, **request: Any) -> Sequence:
        """Validate a request.

        Args:
            prompt: text or token ids.
            params: how to sample.
            request: further fields of `Request`, all optional: ``id``, ``salt``, ``use_cache``, ``exact``,
                ``boundaries``, ``checkpoint_at``.

        Raises:
            RequestError: the prompt or a parameter cannot be used; nothing was started.
        """
        ids = tuple(self.tokenizer.encode(prompt)) if isinstance(prompt, str) else _ids(prompt)
        params = params.resolve(self._defaults)
        self._check_tokens("prompt", ids)
        self._check_tokens("forced", params.forced)
        max_tokens = self._room(ids, params)
        request_id = request.pop("id", None) or f"req-{next(self._numbers)}-{uuid4().hex[:8]}"
        made = Request(id=request_id, prompt=ids, params=params, **request)
        end_tokens = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._end_tokens)
        text = TextStream(self.tokenizer, params.stop)
        return Sequence(made, self.namespace(made.salt), text, end_tokens, max_tokens)

    def namespace(self, salt: str) -> bytes:
        """Namespace of the cache keys of one tenant."""
        return f"{self._digest}\0{salt}".encode("utf-8", "surrogatepass")

    def _check_tokens(self, name: str, ids: tuple[int, ...]) -> None:
        bad = next((i for i in ids if not 0 <= i < self._vocab_size), None)
        if bad is not None:
            raise RequestError(f"{name} holds token {bad}; the vocabulary is 0..{self._vocab_size - 1}", param=name)

    def _room(self, ids: tuple[int, ...], params: SamplingParams) -> int:
        if not ids:
            raise RequestError("the prompt is empty: give at least one token", param="prompt", code="empty_prompt")
        room = self.max_context - len(ids)
        wanted = params.max_tokens or 1
        if room < wanted:
            raise RequestError(
                f"the prompt has {len(ids)} tokens and {wanted} more are to be generated, but this server's context "
                f"is {self.max_context}: shorten the prompt or lower max_tokens",
                param="prompt" if room < 1 else "max_tokens",
                code="context_length_exceeded",
            )
        return params.max_tokens or room


def _ids(prompt: Iterable[int]) -> tuple[int, ...]:
    try:
        return tuple(map(index, prompt))
    except TypeError:
        raise RequestError("a prompt is a text or a list of token ids", param="prompt") from None
