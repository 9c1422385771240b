"""From what a caller asks to a sequence that the engine can run: the boundary where bad requests are refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from operator import index
from typing import Any, Protocol
from uuid import uuid4

from holdover.chunks import Chunk
from holdover.chunks.selectors import SELECTORS
from holdover.engine.chunks.request import Part, compose
from holdover.engine.chunks.settings import DEFAULT_CHUNK_TOKENS, ChunkSettings
from holdover.engine.grammar import Constrainer, Constraint, Grammar
from holdover.engine.request import Request
from holdover.engine.sampling import SamplingDefaults, SamplingParams
from holdover.engine.sequence import Sequence
from holdover.engine.text import Decoder, TextStream
from holdover.errors import RequestError


class TextModel(Decoder, Protocol):
    """The part of a tokenizer that requests need."""

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``."""

    def encode_part(self, text: str) -> list[int]:
        """Token ids of a part of a text: with no special tokens but those that it spells out."""

    @property
    def verbatim(self) -> Decoder:
        """Turns ids into text with special tokens left in."""


class Preparer:
    """Turns prompts into sequences.

    Args:
        tokenizer: the model's tokenizer.
        digest: identifies the model in cache keys.
        defaults: the model's sampling defaults.
        end_tokens: tokens that end a text.
        max_context: longest sequence that the model and the KV pool allow.
        vocab_size: token ids are below this.
        constrainer: follows grammars; None where there are none.
        chunk_tokens: most tokens of one of the chunks that a text is cut into.
        chunks_refused: why there are no chunks; empty if there are.
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
        constrainer: Constrainer | None = None,
        chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
        chunks_refused: str = "",
    ) -> None:
        self.tokenizer = tokenizer
        self.max_context = max_context
        self._digest = digest
        self._defaults = defaults
        self._end_tokens = end_tokens
        self._vocab_size = vocab_size
        self._constrainer = constrainer
        self._chunk_tokens = chunk_tokens
        self._chunks_refused = chunks_refused
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
        self._check_tokens("logit_bias", tuple(token for token, _ in params.logit_bias))
        max_tokens = self._room(ids, params)
        request_id = request.pop("id", None) or f"req-{next(self._numbers)}-{uuid4().hex[:8]}"
        made = Request(id=request_id, prompt=ids, params=params, **request)
        end_tokens = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._end_tokens)
        decoder = self.tokenizer if params.skip_special_tokens else self.tokenizer.verbatim
        text = TextStream(decoder, params.stop)
        return Sequence(made, self.namespace(made.salt), text, end_tokens, max_tokens, self._constraint(params))

    def composed(
        self,
        context: Iterable[Part],
        query: str | Iterable[int],
        params: SamplingParams,
        settings: ChunkSettings,
        **request: Any,
    ) -> Sequence:
        """Validate a request over chunks.

        Args:
            context: chunks, and text or token ids around them.
            query: text or token ids behind the context, at least one token.
            params: how to sample.
            settings: what holds where the request says nothing.
            request: ``selector``, ``initialiser``, ``ratio`` and ``window`` of `Composition`; further fields of
                `Request`, as for `sequence`.

        Raises:
            RequestError: the context, the query or a parameter cannot be used; nothing was started.
        """
        names = ("selector", "initialiser", "ratio", "window")
        said = {name: request.pop(name, None) for name in names}
        choice = {name: getattr(settings, name) if value is None else value for name, value in said.items()}
        composition = compose(list(context), query, self._part, **choice, extras=settings.extras)
        if settings.use == "refuse":
            raise RequestError("this server composes no prompts of chunks: send texts unmarked", param="context")
        # chunks are cached too: to keep out of the cache is to run all of them
        if settings.use == "full" or not request.get("use_cache", True):
            composition = replace(composition, selector=SELECTORS["all"](), why=settings.why)
        if params.prompt_logprobs is not None:
            raise RequestError(
                "tokens that are reused have no logprobs: leave out prompt_logprobs", param="prompt_logprobs"
            )
        if request.get("exact"):
            raise RequestError("a composed state is not exact: leave out exact, or the chunks", param="exact")
        # the next query over the same context repeats all of it
        request["checkpoint_at"] = (composition.assembly.query.start, *request.get("checkpoint_at", ()))
        return self.sequence(composition.assembly.tokens, params, composition=composition, **request)

    def chunk(self, content: str | Iterable[int]) -> Chunk:
        """Validate a chunk.

        Raises:
            RequestError: it is empty, too long, or no text or token ids, or there are no chunks here.
        """
        if self._chunks_refused:
            raise RequestError(self._chunks_refused, param="context")
        ids = self._part(content)
        if not 0 < len(ids) <= self.max_context:
            raise RequestError(f"a chunk has 1 to {self.max_context} tokens, not {len(ids)}", param="context")
        self._check_tokens("context", ids)
        return Chunk(ids)

    def chunks(self, content: str | Iterable[int]) -> tuple[Chunk, ...]:
        """Cut a text into chunks that are not too long: all but the last one as long as they may be.

        Raises:
            RequestError: it is empty, or no text or token ids.
        """
        ids = self._part(content)
        most = min(self._chunk_tokens, self.max_context)
        return tuple(self.chunk(ids[start : start + most]) for start in range(0, len(ids) or 1, most))

    def prefix(self, ids: Iterable[int], name: str) -> tuple[int, ...]:
        """Validate tokens that are to be cached, not continued.

        Args:
            ids: the tokens.
            name: the request's field that they are from.

        Raises:
            RequestError: there are none or too many, or one is not in the vocabulary.
        """
        checked = _ids(ids)
        if not 0 < len(checked) <= self.max_context:
            raise RequestError(
                f"{name} gives {len(checked)} tokens: a prefix has 1 to {self.max_context}, this server's context",
                param=name,
                code="context_length_exceeded" if checked else "empty_prompt",
            )
        self._check_tokens(name, checked)
        return checked

    def _part(self, part: str | Iterable[int]) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode_part(part)) if isinstance(part, str) else _ids(part)

    def namespace(self, salt: str) -> bytes:
        """Namespace of the cache keys of one tenant."""
        return f"{self._digest}\0{salt}".encode("utf-8", "surrogatepass")

    def check_grammar(self, grammar: Grammar) -> None:
        """Check a grammar by itself, for a message that says where it is wrong.

        Raises:
            RequestError: it cannot be used.
        """
        self._follow(grammar)

    def _constraint(self, params: SamplingParams) -> Constraint | None:
        return None if params.grammar is None else self._follow(params.grammar)

    def _follow(self, grammar: Grammar) -> Constraint:
        if self._constrainer is None:
            raise RequestError("this engine follows no grammars", param=grammar.param)
        return self._constrainer.constraint(grammar)

    def _check_tokens(self, name: str, ids: tuple[int, ...]) -> None:
        bad = next((i for i in ids if not 0 <= i < self._vocab_size), None)
        if bad is not None:
            raise RequestError(f"{name} holds token {bad}; the vocabulary is 0..{self._vocab_size - 1}", param=name)

    def _room(self, ids: tuple[int, ...], params: SamplingParams) -> int:
        if not ids:
            raise RequestError("the prompt is empty: give at least one token", param="prompt", code="empty_prompt")
        room = self.max_context - len(ids)
        wanted = 1 if params.max_tokens is None else params.max_tokens
        if room < wanted:
            raise RequestError(
                f"the prompt has {len(ids)} tokens and {wanted} more are to be generated, but this server's context "
                f"is {self.max_context}: shorten the prompt or lower max_tokens",
                param="prompt" if room < 1 else "max_tokens",
                code="context_length_exceeded",
            )
        return room if params.max_tokens is None else params.max_tokens


def _ids(prompt: Iterable[int]) -> tuple[int, ...]:
    try:
        return tuple(map(index, prompt))
    except TypeError:
        raise RequestError("a prompt is a text or a list of token ids", param="prompt") from None
