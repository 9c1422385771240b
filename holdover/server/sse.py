"""Server-sent events whose source is closed however the response ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from typing import Any

from fastapi.responses import StreamingResponse

from holdover.server.wire import Json, encode

DONE = b"data: [DONE]\n\n"

_Message = MutableMapping[str, Any]


def event(body: Json) -> bytes:
    """One event."""
    return b"data: " + encode(body) + b"\n\n"


class EventStream(StreamingResponse):
    """Streams ``events``, and closes ``source``, from which they are made, however the response ends.

    A client that goes away cancels the response, often where neither generator runs and so neither notices; the
    first may not even have begun, and then closing it would not reach the second.

    Args:
        events: what is sent.
        source: what ``events`` draws on.
    """

    def __init__(self, events: AsyncGenerator[bytes], source: AsyncGenerator[object]) -> None:
        # proxies would otherwise collect events before passing them on
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._generators = (events, source)

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        """Send the response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            for generator in self._generators:
                await generator.aclose()
