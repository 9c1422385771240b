"""The two endpoints' bodies and chunks, from what the engine returns."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, ClassVar
from uuid import uuid4

from holdover.engine.request import Output, Update
from holdover.engine.sampling import TokenLogprob
from holdover.server.logprobs import TokenText, chat_logprobs, completion_logprobs, prompt_logprobs

Json = dict[str, Any]


class Shape(ABC):
    """Form of one answer, whole or as a stream of chunks.

    Args:
        model: the name that the model is served by.
        text: text of one token.
        include_usage: whether a stream ends with a chunk of usage.
    """

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, model: str, text: TokenText, *, include_usage: bool = False) -> None:
        self.id = f"{self.id_prefix}-{uuid4().hex}"
        self.include_usage = include_usage
        self._model = model
        self._token_text = text
        self._created = int(time.time())

    def whole(self, output: Output) -> Json:
        """The answer in one body."""
        choice = self._whole_choice(output) | {"finish_reason": output.finish_reason}
        return self._body(self.whole_object, [choice]) | {"usage": usage(output), "holdover": explanation(output)}

    def chunks(self, update: Update) -> Iterator[Json]:
        """What ``update`` adds to a stream, as chunks; none if its text is held back."""
        if update.text or update.logprobs:
            yield self._chunk(self._delta(update.text, update.logprobs))
        if update.output is not None:
            last = self._delta("", None) | {"finish_reason": update.output.finish_reason}
            said = {"holdover": explanation(update.output)}
            yield self._chunk(last) | said
            if self.include_usage:
                yield self._body(self.chunk_object, []) | {"usage": usage(update.output)} | said

    @abstractmethod
    def _whole_choice(self, output: Output) -> Json: ...

    @abstractmethod
    def _delta(self, text: str, logprobs: Sequence[TokenLogprob] | None) -> Json: ...

    def _chunk(self, choice: Json) -> Json:
        body = self._body(self.chunk_object, [{"finish_reason": None} | choice])
        return body | {"usage": None} if self.include_usage else body

    def _body(self, kind: str, choices: list[Json]) -> Json:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model, "choices": choices}


class ChatShape(Shape):
    """Chat completions. The first chunk also says whose turn it is."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    _opened = False

    def chunks(self, update: Update) -> Iterator[Json]:
        """What ``update`` adds to a stream."""
        if not self._opened:
            self._opened = True
            delta = {"role": "assistant", "content": "", "refusal": None}
            yield self._chunk({"index": 0, "delta": delta, "logprobs": None})
        yield from super().chunks(update)

    def _whole_choice(self, output: Output) -> Json:
        logprobs = None if output.logprobs is None else chat_logprobs(output.logprobs, self._token_text)
        message = {"role": "assistant", "content": output.text, "refusal": None}
        return {"index": 0, "message": message, "logprobs": logprobs}

    def _delta(self, text: str, logprobs: Sequence[TokenLogprob] | None) -> Json:
        reported = chat_logprobs(logprobs, self._token_text) if logprobs else None
        return {"index": 0, "delta": {"content": text} if text or logprobs else {}, "logprobs": reported}


class CompletionShape(Shape):
    """Text completions."""

    id_prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"
    _offset = 0

    def _whole_choice(self, output: Output) -> Json:
        logprobs = None if output.logprobs is None else completion_logprobs(output.logprobs, self._token_text)
        choice: Json = {"index": 0, "text": output.text, "logprobs": logprobs}
        if output.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs, self._token_text)
        return choice

    def _delta(self, text: str, logprobs: Sequence[TokenLogprob] | None) -> Json:
        reported = None
        if logprobs:
            reported = completion_logprobs(logprobs, self._token_text, self._offset)
            self._offset += sum(map(len, reported["tokens"]))
        return {"index": 0, "text": text, "logprobs": reported}


def usage(output: Output) -> Json:
    """Token counts. ``cached_tokens`` are those that were not computed again."""
    prompt, completion = len(output.prompt_token_ids), len(output.token_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": output.cache.state_depth},
    }


def explanation(output: Output) -> Json:
    """What the cache gave the request, and how long it took, in milliseconds since it was submitted."""
    timing = output.timing
    milliseconds = {"queued": timing.queued, "first_token": timing.first_token, "total": timing.total}
    return {
        "cache": asdict(output.cache),
        "timing": {f"{name}_ms": None if s is None else round(s * 1e3, 3) for name, s in milliseconds.items()},
    }
