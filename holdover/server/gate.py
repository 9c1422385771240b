"""How many requests may be under way, for whom, and until when."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from holdover.server.asgi import App, Receive, Scope, Send
from holdover.server.errors import ApiError

Clock = Callable[[], float]
_MEASURED = 64
_LONGEST_WAIT = 600


class DrainRate:
    """How fast requests end, measured over the last ones that did. Time in which none was under way does not count.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._busy = 0.0
        self._since: float | None = None
        # busy seconds at each end; the first entry is where the measurement starts
        self._ends: deque[float] = deque([0.0], maxlen=_MEASURED)

    def start(self) -> None:
        """There is a request under way from now on."""
        if self._since is None:
            self._since = self._clock()

    def end(self, *, is_last: bool) -> None:
        """A request ended; with ``is_last`` none is left."""
        self._ends.append(self._busy_seconds())
        if is_last:
            self._busy, self._since = self._busy_seconds(), None

    def seconds_for(self, count: int) -> int:
        """Whole seconds, at least 1, in which ``count`` requests end at that rate."""
        measured = self._busy_seconds() - self._ends[0]
        seconds = count * measured / max(1, len(self._ends) - 1)
        return max(1, min(math.ceil(seconds), _LONGEST_WAIT))

    def _busy_seconds(self) -> float:
        return self._busy + (0.0 if self._since is None else self._clock() - self._since)


class Gate:
    """Counts requests in and out. Used by the event loop's thread, but for `drain`, which any may call.

    Args:
        running: requests that the engine runs together.
        waiting: requests that may wait beside them.
        per_client: requests that one client may have under way; None for any number.
        clock: seconds.
    """

    def __init__(
        self, *, running: int, waiting: int, per_client: int | None = None, clock: Clock = time.monotonic
    ) -> None:
        self._running = running
        self._waiting = waiting
        self._per_client = per_client
        self._clock = clock
        self._open: Counter[str | None] = Counter()
        self._rate = DrainRate(clock)
        self._deadline: float | None = None

    @property
    def num_open(self) -> int:
        """Requests under way."""
        return self._open.total()

    @property
    def is_draining(self) -> bool:
        """Whether no request is let in any more."""
        return self._deadline is not None

    @property
    def is_drained(self) -> bool:
        """Whether nothing is left to wait for: every request has ended, or its time has."""
        return self._deadline is not None and (not self.num_open or self._clock() >= self._deadline)

    def drain(self, grace: float) -> None:
        """Let nothing in from now on, and give what is under way ``grace`` seconds."""
        self._deadline = self._clock() + grace

    def check_open(self) -> None:
        """Raise ApiError while the server drains."""
        if self._deadline is not None:
            seconds = math.ceil(self._deadline - self._clock())
            message = "the server is shutting down and takes no new requests: ask again when it is back"
            raise ApiError.later(503, message, code="draining", seconds=seconds)

    @contextmanager
    def admitted(self, client: str | None) -> Iterator[None]:
        """A request's place, for as long as the context lasts.

        Raises:
            ApiError: there is none.
        """
        self.check_open()
        self._check_room(client)
        self._open[client] += 1
        self._rate.start()
        try:
            yield
        finally:
            self._open[client] -= 1
            # clients come and go
            self._open += Counter()
            self._rate.end(is_last=not self.num_open)

    def _check_room(self, client: str | None) -> None:
        own, total = self._open[client], self.num_open
        if self._per_client is not None and own >= self._per_client:
            # of the requests that end, its own are this share
            ends = math.ceil(total / own)
            message = f"{own} requests of this key are under way, and no more than that may be: wait for one to end"
            raise ApiError.later(429, message, code="rate_limit_exceeded", seconds=self._rate.seconds_for(ends))
        if total >= self._running + self._waiting:
            message = f"{self._running} requests may run and {self._waiting} may wait, and as many do: ask again later"
            seconds = self._rate.seconds_for(max(1, self._waiting))
            raise ApiError.later(429, message, code="queue_full", seconds=seconds)


class Admission:
    """Keeps a place of the gate for as long as a request is answered, streams included.

    Args:
        app: the application below.
        gate: who is let in.
        paths: where requests need a place; elsewhere, only changes are refused while the server drains.
        on_refusal: told of every request that found none.
    """

    def __init__(self, app: App, gate: Gate, paths: Collection[str], on_refusal: Callable[[], None]) -> None:
        self._app = app
        self._gate = gate
        self._paths = paths
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application for those who are let in.

        Raises:
            ApiError: there is no room, or not any more.
        """
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
        elif scope["path"] in self._paths:
            await self._admit(scope, receive, send)
        else:
            self._gate.check_open()
            await self._app(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_in = False
        try:
            with self._gate.admitted(scope["state"].get("client")):
                is_in = True
                await self._app(scope, receive, send)
        finally:
            if not is_in:
                self._on_refusal()
