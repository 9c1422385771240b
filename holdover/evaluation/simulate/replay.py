"""A closed loop over an engine's own loop: clients that send a turn when the one before it has been answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdover.engine.core import EngineCore
from holdover.engine.prepare import Preparer
from holdover.engine.request import Output
from holdover.engine.sampling import SamplingParams
from holdover.errors import HoldoverError
from holdover.evaluation.traces.exchanges import Exchange


class Timer(Protocol):
    """Time of the loop that is driven.

    Attributes:
        ms: milliseconds from some moment on.
    """

    @property
    def ms(self) -> float:
        """Now."""

    def stepped(self, core: EngineCore) -> None:
        """The loop made a step."""


@dataclass(frozen=True)
class Served:
    """One request as it was served.

    Attributes:
        dialogue: place of its conversation in the trace.
        turn: its place there.
        prompt: tokens of its prompt.
        hit: those of them that were not computed.
        ttft_ms: from its submission to its first token.
        e2e_ms: from its submission to its last.
    """

    dialogue: int
    turn: int
    prompt: int
    hit: int
    ttft_ms: float
    e2e_ms: float


@dataclass
class _Client:
    """One who is waiting for an answer."""

    dialogue: int
    turns: Iterator[tuple[int, Exchange]]
    turn: int = 0
    submitted: float = 0.0
    first: float | None = None


def replay(
    core: EngineCore, prepare: Preparer, dialogues: Sequence[Sequence[Exchange]], clients: int, timer: Timer
) -> list[Served]:
    """Serve every exchange, with its recorded reply forced token by token.

    Between two steps all moves between tiers end, so that what is found does not depend on how fast they are.

    Args:
        core: the engine's loop.
        prepare: makes its requests.
        dialogues: conversations, in the order in which they start.
        clients: conversations under way at a time, whatever the engine runs together.
        timer: time of the loop.

    Returns:
        All requests, in the order in which they ended.

    Raises:
        HoldoverError: a request failed.
    """
    waiting = iter(enumerate(dialogues))
    active: dict[str, _Client] = {}
    served: list[Served] = []

    def start() -> None:
        for place, dialogue in waiting:
            client = _Client(place, iter(enumerate(dialogue)))
            if _ask(client, core, prepare, active, timer):
                return

    for _ in range(clients):
        start()
    while core.has_work:
        updates = core.step()
        core.cache.tiers.finish()
        timer.stepped(core)
        for update in updates:
            client = active[update.request_id]
            if update.token_ids and client.first is None:
                client.first = timer.ms
            if update.output is not None:
                del active[update.request_id]
                served.append(_served(client, update.output, timer.ms))
                if not _ask(client, core, prepare, active, timer):
                    start()
    return served


def _ask(client: _Client, core: EngineCore, prepare: Preparer, active: dict[str, _Client], timer: Timer) -> bool:
    """Submit a client's next turn; False if it has none."""
    for turn, exchange in client.turns:
        params = SamplingParams(max_tokens=len(exchange.reply), forced=exchange.reply, ignore_eos=True, temperature=0)
        sequence = prepare.sequence(exchange.prompt, params, boundaries=exchange.boundaries)
        core.add(sequence)
        client.turn, client.submitted, client.first = turn, timer.ms, None
        active[sequence.request.id] = client
        return True
    return False


def _served(client: _Client, output: Output, now: float) -> Served:
    if output.error is not None or client.first is None:
        where = f"turn {client.turn} of conversation {client.dialogue}"
        raise HoldoverError(f"{where} could not be served: {output.error or 'no token came'}")
    prompt, hit = len(output.prompt_token_ids), output.cache.state_depth
    return Served(client.dialogue, client.turn, prompt, hit, client.first - client.submitted, now - client.submitted)
