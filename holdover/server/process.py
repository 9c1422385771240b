"""The server as a process: ready, draining, gone."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from holdover.server.gate import Gate

logger = logging.getLogger(__name__)
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class DrainingServer(uvicorn.Server):
    """Ends on a signal when what is under way has ended; on a second one at once.

    While it drains it still listens: new requests are told to come back, and probes that it is on its way out.

    Args:
        config: uvicorn's.
        gate: what requests pass.
        close: ends every request that is still under way; blocks until they are told.
        grace: seconds that requests may take to end by themselves.
        on_ready: called when requests are answered.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        gate: Gate,
        close: Callable[[], None],
        grace: float,
        on_ready: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._gate = gate
        self._close = close
        self._grace = grace
        self._on_ready = on_ready
        self._is_announced = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer."""
        await super().startup(sockets)
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain. The next signal meets no handler of ours."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        self._gate.drain(self._grace)

    async def on_tick(self, counter: int) -> bool:
        """Look, ten times a second, whether it is time to go."""
        if self._gate.is_draining and not self._is_announced:
            self._is_announced = True
            logger.info("draining: %d requests have %g seconds to end", self._gate.num_open, self._grace)
        if self._gate.is_drained and not self.should_exit:
            if self._gate.num_open:
                logger.warning("%d requests are ended: their time is up", self._gate.num_open)
            # off the loop, which still delivers the end of each request
            await asyncio.to_thread(self._close)
            self.should_exit = True
        return await super().on_tick(counter)
