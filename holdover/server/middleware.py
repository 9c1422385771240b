"""What every response gets: an id, a line in the log, and an answer even where the code below fails."""

from __future__ import annotations

import logging
import re
import time
from uuid import uuid4

from holdover.engine.origin import ORIGIN
from holdover.server.asgi import App, Message, Receive, Scope, Send, header
from holdover.server.errors import CLIENT_GONE, ClientGoneError, as_api_error
from holdover.server.wire import error_response, json_response

# its own name, so that it can be switched off alone
access = logging.getLogger("holdover.access")

HEADER = b"x-request-id"
_ACCEPTABLE = re.compile(rb"[\x21-\x7e]{1,128}")
# asked every few seconds by machines
QUIET = frozenset({"/health", "/metrics", "/v1/status"})


class RequestId:
    """Names every request, by the client's ``x-request-id`` where it sends a usable one, and logs how it ended.

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
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        status, began = 0, time.perf_counter()

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (HEADER, request_id.encode())]
            await send(message)

        token = ORIGIN.set(request_id)
        try:
            await self._app(scope, receive, send_named)
        except ClientGoneError:
            await json_response({}, CLIENT_GONE)(scope, receive, send_named)
        except Exception as error:
            answer = as_api_error(error, request_id)
            if status:
                raise
            await error_response(answer)(scope, receive, send_named)
        finally:
            _log(scope, status, time.perf_counter() - began)
            ORIGIN.reset(token)


def _log(scope: Scope, status: int, seconds: float) -> None:
    # the raw path: a decoded one could hold a line break; never the query, never a header
    fields = {
        "method": scope["method"],
        "path": scope["raw_path"].decode("ascii", "backslashreplace"),
        "status": status,
        "ms": round(seconds * 1e3, 1),
        "client": scope["state"].get("client"),
    }
    level = logging.DEBUG if scope["path"] in QUIET else logging.INFO
    access.log(level, "%(method)s %(path)s %(status)d in %(ms).1f ms", fields, extra={"fields": fields})


def _given(scope: Scope) -> str | None:
    value = header(scope, HEADER)
    return value.decode("ascii") if _ACCEPTABLE.fullmatch(value) else None
