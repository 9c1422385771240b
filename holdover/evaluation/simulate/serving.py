"""Measure what a server adds to its engine: before a request reaches it, and for every token that is sent."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

from holdover.engine.async_engine import AsyncEngine
from holdover.engine.engine import Engine
from holdover.evaluation.simulate.ask import Ask, Asked, asking
from holdover.evaluation.simulate.costs import Costs, ServingCost
from holdover.evaluation.simulate.measure import LENGTHS, SAMPLED, decode_steps, decoded, least, measure
from holdover.evaluation.traces.sources import BUNDLED, open_recordings

_REPEATS = 5
_STEPS = 64
# of the recording: more than the longest prompt needs
_CONVERSATIONS = 16
# characters of it that tell how many a token has
_SAMPLE = 2000


def measure_served(shared: AsyncEngine, url: str, machine: str | None = None) -> Costs:
    """Measure forwards, restores and, unless there is an `obstacle`, the server.

    Args:
        shared: the engine, idle.
        url: where it is served, by this process.
        machine: as for `measure`.

    Raises:
        HoldoverError: the server does not answer chats, or as for `measure`.
    """
    costs = asyncio.run(shared.call(lambda _: measure(shared.engine, machine)))
    if obstacle(shared.engine) is not None:
        return costs
    with asking(url, shared.engine.core.limits.max_running) as ask:
        request, prompt_token = fit_requests(_single(shared.engine, ask))
        token, together = _token(shared, ask)
    return replace(costs, serving=ServingCost(request, prompt_token, token, together))


def obstacle(engine: Engine) -> str | None:
    """Why a server's work for this engine cannot be measured; None if it can."""
    if not engine.loaded.tokenizer.has_chat_template:
        return "the model has no chat template"
    # a template may add as much again
    if not _has_room(engine, 1, 2 * LENGTHS[0]):
        return f"a context of {engine.prepare.max_context} tokens is too short for it"
    return None


def fit_requests(asked: Sequence[Asked]) -> tuple[float, float]:
    """Milliseconds for a request and for each token of its prompt, by chats that were sent alone."""
    rows = [[1.0, float(one.prompt_tokens)] for one in asked]
    request, token = least(rows, [one.ttft_ms - one.engine_ms for one in asked])
    return request, token


def _single(engine: Engine, ask: Ask) -> list[Asked]:
    found = []
    # a template may add as much again
    for length in (n for n in LENGTHS if 2 * n < engine.prepare.max_context):
        chat = _chat(engine, length, tokens=1)
        # the first one finds caches cold that the others find warm
        times = [ask([chat]) for _ in range(1 + _REPEATS)][1:]
        found.append(sorted(times, key=lambda one: one.ttft_ms - one.engine_ms)[_REPEATS // 2])
    return found


def _token(shared: AsyncEngine, ask: Ask) -> tuple[float, int]:
    """Milliseconds by which a token that is sent makes a step longer, and with how many requests together.

    As many as the engine runs, or as it has room for.
    """
    engine = shared.engine
    length = ask([_chat(engine, LENGTHS[0], tokens=1)]).prompt_tokens
    batch = engine.core.limits.max_running
    while batch > 1 and not _has_room(engine, batch, length):
        batch //= 2
    most = decoded(engine, batch, length, _STEPS)
    chats = [[_chat(engine, LENGTHS[0], tokens=tokens)] * batch for tokens in (most - _STEPS, most)]
    # a small difference between long times: of each, the one that was disturbed least
    alone = short = long = math.inf
    for _ in range(_REPEATS):
        steps = asyncio.run(shared.call(lambda _: decode_steps(engine, batch, length, _STEPS)))
        walls = [ask(together).wall_ms for together in chats]
        alone, short, long = min(alone, steps.ms), min(short, walls[0]), min(long, walls[1])
    # what comes before all decode together, and after, is alike in both
    return max(0.0, (long - short - alone) / (_STEPS * batch)), batch


def _has_room(engine: Engine, batch: int, length: int) -> bool:
    whole = length + decoded(engine, batch, length, _STEPS)
    return whole <= engine.prepare.max_context and batch * whole <= engine.core.cache.kv.num_rows


def _chat(engine: Engine, length: int, *, tokens: int) -> dict[str, Any]:
    """A chat with a message of about so many tokens, sampled as `holdover bench serve` does."""
    text = _text()
    count = length * _SAMPLE // len(engine.loaded.tokenizer.encode(text[:_SAMPLE]))
    message = {"role": "user", "content": text[:count]}
    limits = {"max_tokens": tokens, "ignore_eos": True, "use_cache": False}
    return {"messages": [message], "temperature": SAMPLED.temperature, "seed": SAMPLED.seed} | limits


@cache
def _text() -> str:
    """Real text, longer than any message."""
    spoken = islice(open_recordings(BUNDLED), _CONVERSATIONS)
    return "\n".join(turn.text for conversation in spoken for turn in conversation.turns)
