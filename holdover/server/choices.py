"""One choice of an answer, whole or as chunks of a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from holdover.engine.request import Output, Update
from holdover.engine.sampling import TokenLogprob
from holdover.server.logprobs import chat_logprobs, completion_logprobs, echoed_logprobs, prompt_logprobs
from holdover.server.offsets import Offsets, Vocabulary
from holdover.server.tools import Call, CallArguments, CallStart, Content, Event, Message, Reasoning, ReplyReader

Json = dict[str, Any]


class ChoiceShape(ABC):
    """Form of one choice.

    Args:
        index: its number in the answer.
        vocabulary: what tokens stand for.
    """

    def __init__(self, index: int, vocabulary: Vocabulary) -> None:
        self._index = index
        self._vocabulary = vocabulary
        self._is_open = False

    @abstractmethod
    def whole(self, output: Output, first: Output) -> Json:
        """The choice in one body.

        Args:
            output: its own.
            first: that of the first choice of the same prompt, which has what is known of the prompt.
        """

    def chunks(self, update: Update) -> Iterator[Json]:
        """What ``update`` adds to a stream; the last one says why the choice ended."""
        if not self._is_open:
            self._is_open = True
            yield from self._opening()
        yield from self._deltas(update.text, update.logprobs)
        if update.output is not None:
            yield from self._closing(update.output)

    @abstractmethod
    def _opening(self) -> Iterator[Json]: ...

    @abstractmethod
    def _deltas(self, text: str, logprobs: Sequence[TokenLogprob] | None) -> Iterator[Json]: ...

    @abstractmethod
    def _closing(self, output: Output) -> Iterator[Json]: ...


class ChatChoice(ChoiceShape):
    """Choice of a chat completion. Its first chunk also says whose turn it is.

    Args:
        index: its number in the answer.
        vocabulary: what tokens stand for.
        reader: tells thoughts and calls from the text.
    """

    def __init__(self, index: int, vocabulary: Vocabulary, reader: ReplyReader) -> None:
        super().__init__(index, vocabulary)
        self._reader = reader

    def whole(self, output: Output, first: Output) -> Json:
        """The choice in one body."""
        message = Message.of([*self._reader.push(output.text), *self._reader.finish()])
        logprobs = None if output.logprobs is None else chat_logprobs(output.logprobs, self._vocabulary)
        reason = self._reason(output)
        return {"index": self._index, "message": _message(message), "logprobs": logprobs, "finish_reason": reason}

    def _opening(self) -> Iterator[Json]:
        yield self._chunk({"role": "assistant", "content": "", "refusal": None})

    def _deltas(self, text: str, logprobs: Sequence[TokenLogprob] | None) -> Iterator[Json]:
        deltas = [_delta(event) for event in self._reader.push(text)] if text else []
        if logprobs:
            # they go with the first piece; where the text is held back, with none
            deltas = deltas or [{"content": ""}]
            yield self._chunk(deltas.pop(0), chat_logprobs(logprobs, self._vocabulary))
        yield from map(self._chunk, deltas)

    def _closing(self, output: Output) -> Iterator[Json]:
        yield from (self._chunk(_delta(event)) for event in self._reader.finish())
        yield self._chunk({}) | {"finish_reason": self._reason(output)}

    def _chunk(self, delta: Json, logprobs: Json | None = None) -> Json:
        return {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": None}

    def _reason(self, output: Output) -> str:
        called = self._reader.num_calls and output.finish_reason == "stop"
        return "tool_calls" if called else output.finish_reason


class CompletionChoice(ChoiceShape):
    """Choice of a text completion.

    Args:
        index: its number in the answer.
        vocabulary: what tokens stand for.
        echo: text to begin with; None for none.
    """

    def __init__(self, index: int, vocabulary: Vocabulary, echo: str | None = None) -> None:
        super().__init__(index, vocabulary)
        self._echo = echo
        self._offsets = Offsets(vocabulary, start=len(echo or ""))

    def whole(self, output: Output, first: Output) -> Json:
        """The choice in one body."""
        choice = self._chunk((self._echo or "") + output.text, self._logprobs(output, first))
        if self._echo is None and first.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(first.prompt_logprobs, self._vocabulary)
        return choice | {"finish_reason": output.finish_reason}

    def _logprobs(self, output: Output, first: Output) -> Json | None:
        if output.logprobs is None:
            return None
        reported = completion_logprobs(output.logprobs, self._vocabulary, self._offsets)
        if self._echo is not None and first.prompt_logprobs is not None:
            prompt = [entry for entry in first.prompt_logprobs if entry is not None]
            echoed = echoed_logprobs(first.prompt_token_ids[0], prompt, self._vocabulary, self._echo)
            return {name: echoed[name] + values for name, values in reported.items()}
        return reported

    def _opening(self) -> Iterator[Json]:
        if self._echo is not None:
            yield self._chunk(self._echo)

    def _deltas(self, text: str, logprobs: Sequence[TokenLogprob] | None) -> Iterator[Json]:
        reported = None
        if logprobs:
            reported = completion_logprobs(logprobs, self._vocabulary, self._offsets)
        if text or reported:
            yield self._chunk(text, reported)

    def _closing(self, output: Output) -> Iterator[Json]:
        yield self._chunk("") | {"finish_reason": output.finish_reason}

    def _chunk(self, text: str, logprobs: Json | None = None) -> Json:
        return {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": None}


def _message(message: Message) -> Json:
    body: Json = {"role": "assistant", "content": message.content, "refusal": None}
    if message.reasoning:
        body["reasoning_content"] = message.reasoning
    if message.calls:
        body |= {"content": message.content or None, "tool_calls": [_call(call) for call in message.calls]}
    return body


def _call(call: Call) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _delta(event: Event) -> Json:
    match event:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case CallStart(index, id_, name):
            return {"tool_calls": [{"index": index, **_call(Call(id_, name))}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
