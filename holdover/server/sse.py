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
    """Streams ``events``.

    A client that goes away while an event is being sent cancels the response at a point where the generator does not
    run, and so does not notice: it is closed here, so that the request behind it is always given up.
    """

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        # proxies would otherwise collect events before passing them on
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._events = events

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
            await self._events.aclose()
