"""Bodies of answers and of the chunks of streams, from what the engine returns."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdover.engine.request import Output, Update
from holdover.server.choices import ChoiceShape

Json = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """What an endpoint calls its answers.

    Attributes:
        id_prefix: what their ids begin with.
        whole: a whole one.
        chunk: a piece of one.
    """

    id_prefix: str
    whole: str
    chunk: str


CHAT = Kind("chatcmpl", "chat.completion", "chat.completion.chunk")
COMPLETION = Kind("cmpl", "text_completion", "text_completion")


class Shape:
    """Form of one answer, whole or as a stream of chunks.

    Args:
        kind: which endpoint's.
        id: the answer's id.
        model: the name that the model is served by.
        choices: form of each choice; those of one prompt stand together.
        per_prompt: choices of one prompt.
        include_usage: whether a stream ends with a chunk of usage.
    """

    def __init__(
        self,
        kind: Kind,
        id: str,
        model: str,
        choices: Sequence[ChoiceShape],
        *,
        per_prompt: int = 1,
        include_usage: bool = False,
    ) -> None:
        self._kind = kind
        self._id = id
        self._model = model
        self._choices = choices
        self._per_prompt = per_prompt
        self._include_usage = include_usage
        self._created = int(time.time())
        # of the choices of a stream that have ended
        self._outputs: dict[int, Output] = {}

    def whole(self, outputs: Sequence[Output]) -> Json:
        """The answer in one body; one output a choice."""
        bodies = []
        for number, (choice, output) in enumerate(zip(self._choices, outputs, strict=True)):
            body = choice.whole(output, outputs[number - number % self._per_prompt])
            # with several choices, what the cache gave each
            bodies.append(body | {"holdover": explanation(output)} if len(outputs) > 1 else body)
        said = {"usage": self._usage(outputs), "holdover": explanation(outputs[0])}
        return self._body(self._kind.whole, bodies) | said

    def chunks(self, number: int, update: Update) -> Iterator[Json]:
        """What ``update`` of choice ``number`` adds to a stream, as chunks; none if its text is held back."""
        for piece in self._choices[number].chunks(update):
            body = self._chunk(piece)
            if update.output is not None and piece["finish_reason"] is not None:
                body["holdover"] = explanation(update.output)
            yield body
        if update.output is not None:
            self._outputs[number] = update.output
            if self._include_usage and len(self._outputs) == len(self._choices):
                outputs = [self._outputs[i] for i in range(len(self._choices))]
                said = {"usage": self._usage(outputs), "holdover": explanation(outputs[0])}
                yield self._body(self._kind.chunk, []) | said

    def _usage(self, outputs: Sequence[Output]) -> Json:
        """Token counts. A prompt counts once; its ``cached_tokens`` are those that its first choice did not compute.

        Those are the tokens that a checkpoint stands for, or whose rows were taken from chunks.
        """
        firsts = outputs[:: self._per_prompt]
        prompt = sum(len(output.prompt_token_ids) for output in firsts)
        cached = sum(output.cache.state_depth + output.cache.reused for output in firsts)
        completion = sum(len(output.token_ids) for output in outputs)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _chunk(self, choice: Json) -> Json:
        body = self._body(self._kind.chunk, [choice])
        return body | {"usage": None} if self._include_usage else body

    def _body(self, kind: str, choices: list[Json]) -> Json:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model, "choices": choices}


def explanation(output: Output) -> Json:
    """What the cache gave a choice, and how long it took, in milliseconds since it was submitted."""
    timing = output.timing
    milliseconds = {"queued": timing.queued, "first_token": timing.first_token, "total": timing.total}
    return {
        "cache": asdict(output.cache),
        "timing": {f"{name}_ms": None if s is None else round(s * 1e3, 3) for name, s in milliseconds.items()},
    }
