"""HEAD wherever there is GET, and OPTIONS everywhere: which methods a path answers to."""

from __future__ import annotations

from fastapi import FastAPI

from holdover.server.asgi import App, Message, Receive, Scope, Send


class Head:
    """Answers HEAD as GET is answered, without the body.

    Args:
        app: the application below.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, send_head)


def allowed(app: FastAPI, scope: Scope) -> str:
    """The methods that a path answers to, as ``Allow`` lists them."""
    found = {"OPTIONS"}
    for route in app.routes:
        if route.matches(scope)[0].value:
            found |= set(getattr(route, "methods", None) or ())
    return ", ".join(sorted(found | ({"HEAD"} if "GET" in found else set())))
