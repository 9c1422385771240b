"""From the engine's thread to the event loops in which its updates are waited for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from holdover.engine.request import Update

logger = logging.getLogger(__name__)
T = TypeVar("T")

# each with the number of its sequence
Updates = asyncio.Queue[tuple[int, Update | Exception]]


class Sink(NamedTuple):
    """Where the updates of one sequence go.

    Attributes:
        loop: that who waits for them runs in.
        updates: what is waited on.
        number: of the sequence there.
    """

    loop: asyncio.AbstractEventLoop
    updates: Updates
    number: int

    def put(self, update: Update | Exception) -> None:
        """Hand one over, from any thread.

        Raises:
            RuntimeError: its event loop has closed.
        """
        self.loop.call_soon_threadsafe(self.updates.put_nowait, (self.number, update))


def deliver(updates: Iterable[tuple[Sink, Update]]) -> None:
    """Hand over what a step made. Each event loop is woken once, however many it made it for."""
    batches: dict[asyncio.AbstractEventLoop, list[tuple[Sink, Update]]] = {}
    for sink, update in updates:
        batches.setdefault(sink.loop, []).append((sink, update))
    for loop, batch in batches.items():
        send(partial(_wake, loop), batch)


def send(sink: Callable[[T], object], message: T) -> None:
    """Give ``sink`` a message, if its event loop still runs."""
    try:
        sink(message)
    except RuntimeError:
        # the caller's event loop has closed: nobody is left to tell
        logger.debug("a message found its event loop closed")


def put_all(batch: Sequence[tuple[Sink, Update]]) -> None:
    """Put updates where they are waited for; in their event loop."""
    for sink, update in batch:
        sink.updates.put_nowait((sink.number, update))


def _wake(loop: asyncio.AbstractEventLoop, batch: Sequence[tuple[Sink, Update]]) -> None:
    loop.call_soon_threadsafe(put_all, batch)
