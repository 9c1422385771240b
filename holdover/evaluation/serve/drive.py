"""A closed loop of clients over a frozen trace: the next turn is sent once the model has answered the one before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from holdover.errors import EndpointError
from holdover.evaluation.serve.endpoint import Endpoint
from holdover.evaluation.traces.trace import Dialogue, Trace, sampling_seed


@dataclass(frozen=True)
class Measured:
    """One request as a client saw it.

    Attributes:
        dialogue: id of its conversation.
        turn: its place there.
        ttft_ms: time to the first text.
        e2e_ms: time to the end.
        prompt_tokens: tokens of its prompt, or None; so below.
        cached_tokens: those that were not computed.
        completion_tokens: tokens of its reply.
        is_as_frozen: whether a first prompt has as many tokens as the trace says; None where that cannot be told.
    """

    dialogue: str
    turn: int
    ttft_ms: float
    e2e_ms: float
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    is_as_frozen: bool | None


@dataclass(frozen=True)
class Load:
    """How a trace is put to a server.

    Attributes:
        model: name that it serves.
        clients: conversations under way at a time, whatever the server runs together.
        temperature: that requests are sampled at.
        ignore_eos: whether replies go on to the length that the trace asks for.
    """

    model: str
    clients: int
    temperature: float = 1.0
    ignore_eos: bool = True

    def options(self, seed: int, dialogue: Dialogue, turn: int) -> dict[str, Any]:
        """Fields of one request beside its messages."""
        drawn = {"temperature": self.temperature, "seed": sampling_seed(seed, dialogue.id, turn)}
        limit = {"model": self.model, "max_tokens": dialogue.turns[turn].max_tokens}
        return drawn | limit | ({"ignore_eos": True} if self.ignore_eos else {})


async def drive(
    endpoint: Endpoint, trace: Trace, load: Load, seed: int, done: Callable[[Measured], None]
) -> EndpointError | None:
    """Send every request of a trace once.

    Args:
        endpoint: the server.
        trace: what to send.
        load: how.
        seed: of this run.
        done: is told of every request that was answered.

    Returns:
        What ended the run early, if anything did: no request is sent any more then.
    """
    waiting = iter(trace.dialogues)
    failures: list[EndpointError] = []
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(load.clients):
                group.create_task(_client(endpoint, waiting, load, seed, done))
    except* EndpointError as failed:
        # clients that failed in the same moment say the same
        failures += [error for error in failed.exceptions if isinstance(error, EndpointError)]
    return failures[0] if failures else None


async def _client(
    endpoint: Endpoint, waiting: Iterator[Dialogue], load: Load, seed: int, done: Callable[[Measured], None]
) -> None:
    for dialogue in waiting:
        messages = dialogue.opening()
        for number, turn in enumerate(dialogue.turns):
            messages.append({"role": "user", "content": turn.text})
            answer = await endpoint.chat(messages, **load.options(seed, dialogue, number))
            messages.append({"role": "assistant", "content": answer.text})
            is_first = number == 0 and answer.prompt_tokens is not None
            done(
                Measured(
                    dialogue.id,
                    number,
                    answer.ttft_ms,
                    answer.e2e_ms,
                    answer.prompt_tokens,
                    answer.cached_tokens,
                    answer.completion_tokens,
                    answer.prompt_tokens == turn.prompt_tokens if is_first else None,
                )
            )
