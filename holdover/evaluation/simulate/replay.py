"""A closed loop over an engine's own loop: clients that send a turn when the one before it has been answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from holdover.engine.core import EngineCore
from holdover.engine.prepare import Preparer
from holdover.engine.request import Output
from holdover.engine.sampling import SamplingParams
from holdover.engine.sequence import Sequence as EngineSequence
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

    def sent(self, prompt: int) -> float:
        """A client sends a request with a prompt of so many tokens; milliseconds until the loop sees it."""

    def wait(self, until: float) -> None:
        """The loop has nothing to do before that moment, unless it has passed already."""

    def stepped(self, core: EngineCore, tokens: int) -> None:
        """The loop made a step, and so many tokens in it."""


@dataclass(frozen=True)
class Served:
    """One request as it was served.

    Attributes:
        dialogue: place of its conversation in the trace.
        turn: its place there.
        prompt: tokens of its prompt.
        hit: those of them that were not computed.
        ttft_ms: from sending it to its first token.
        e2e_ms: from sending it to its last.
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
    sent: float = 0.0
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
    sent = _Sent(core, prepare, timer)
    served: list[Served] = []

    def start() -> None:
        for place, dialogue in waiting:
            if sent.ask(_Client(place, iter(enumerate(dialogue)))):
                return

    for _ in range(clients):
        start()
    while sent.arrive():
        updates = core.step()
        core.cache.tiers.finish()
        timer.stepped(core, sum(len(update.token_ids) for update in updates))
        for update in updates:
            client = sent.clients[update.request_id]
            if update.token_ids and client.first is None:
                client.first = timer.ms
            if update.output is not None:
                del sent.clients[update.request_id]
                served.append(_served(client, update.output, timer.ms))
                if not sent.ask(client):
                    start()
    return served


class _Sent:
    """Requests from the moment at which clients send them.

    Attributes:
        clients: who waits for each request.
    """

    def __init__(self, core: EngineCore, prepare: Preparer, timer: Timer) -> None:
        self.clients: dict[str, _Client] = {}
        self._core = core
        self._prepare = prepare
        self._timer = timer
        # on their way to the engine, by arrival; of those that arrive together, as they were sent
        self._coming: list[tuple[float, int, EngineSequence]] = []
        self._count = 0

    def ask(self, client: _Client) -> bool:
        """Send a client's next turn; False if it has none."""
        for turn, exchange in client.turns:
            reply = exchange.reply
            params = SamplingParams(max_tokens=len(reply), forced=reply, ignore_eos=True, temperature=0)
            sequence = self._prepare.sequence(exchange.prompt, params, boundaries=exchange.boundaries)
            client.turn, client.sent, client.first = turn, self._timer.ms, None
            self.clients[sequence.request.id] = client
            arrival = client.sent + self._timer.sent(len(exchange.prompt))
            heappush(self._coming, (arrival, self._count, sequence))
            self._count += 1
            return True
        return False

    def arrive(self) -> bool:
        """Give the engine what has come by now, waiting if it has nothing to do; False if it never will have."""
        if self._coming and not self._core.has_work:
            self._timer.wait(self._coming[0][0])
        while self._coming and self._coming[0][0] <= self._timer.ms:
            self._core.add(heappop(self._coming)[-1])
        return self._core.has_work


def _served(client: _Client, output: Output, now: float) -> Served:
    if output.error is not None or client.first is None:
        where = f"turn {client.turn} of conversation {client.dialogue}"
        raise HoldoverError(f"{where} could not be served: {output.error or 'no token came'}")
    prompt, hit = len(output.prompt_token_ids), output.cache.state_depth
    return Served(client.dialogue, client.turn, prompt, hit, client.first - client.sent, now - client.sent)
