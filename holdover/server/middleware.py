"""What every response gets: an id, and an answer even where the code below fails."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from uuid import uuid4

from holdover.server.errors import CLIENT_GONE, ClientGoneError, as_api_error
from holdover.server.wire import json_response

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADER = b"x-request-id"
_ACCEPTABLE = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestId:
    """Names every request, by the client's ``x-request-id`` where it sends a usable one.

    Args:
        app: the application below.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _given(scope) or uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def send_named(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], (HEADER, request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except ClientGoneError:
            await json_response({}, CLIENT_GONE)(scope, receive, send_named)
        except Exception as error:
            answer = as_api_error(error, request_id)
            if started:
                raise
            await json_response(answer.body, answer.status)(scope, receive, send_named)


def _given(scope: Scope) -> str | None:
    value: bytes = next((value for name, value in scope["headers"] if name == HEADER), b"")
    return value.decode("ascii") if _ACCEPTABLE.fullmatch(value) else None
