"""An OpenAI-compatible server, as a client of streamed chats sees it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdover.errors import ConfigError, EndpointError
from holdover.evaluation.serve.reply import Answer, Reply, reason_of

if TYPE_CHECKING:
    import aiohttp

_CONNECT = 10.0


@dataclass(frozen=True)
class Served:
    """A model that a server offers.

    Attributes:
        name: what the server calls it.
        context: tokens of its longest sequence; None if the server does not say.
    """

    name: str
    context: int | None = None


class Endpoint:
    """A server; made by `connect`.

    Args:
        http: a client of it.
        url: its root.
        stall: seconds without a byte after which it is given up.
    """

    def __init__(self, http: aiohttp.ClientSession, url: str, stall: float) -> None:
        self._http = http
        self._url = url
        self._stall = stall

    async def model(self) -> Served:
        """The first model that it serves.

        Raises:
            EndpointError: it does not say.
        """
        async with self._asked("GET", "/v1/models") as response:
            content = await response.read()
            self._check(response.status, content)
        try:
            found = json.loads(content)["data"][0]
            context = found.get("max_model_len")
            return Served(str(found["id"]), context if isinstance(context, int) else None)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise EndpointError(f"{self._url}/v1/models lists no model: name one with --model") from None

    async def metrics(self) -> str | None:
        """Its metrics in Prometheus' text format; None if it has none."""
        async with self._asked("GET", "/metrics") as response:
            return (await response.read()).decode("utf-8", "replace") if response.status == 200 else None

    async def flush(self) -> bool:
        """Empty its cache, if it is Holdover's; whether that was done."""
        async with self._asked("POST", "/v1/cache/flush") as response:
            return response.status == 200

    async def chat(self, messages: Sequence[dict[str, str]], **options: Any) -> Answer:
        """Ask for the next message of a conversation.

        Args:
            messages: the conversation so far.
            options: further fields of the request.

        Raises:
            EndpointError: the server cannot be reached, refuses, stalls, or breaks off.
        """
        body = {"messages": list(messages), "stream": True, "stream_options": {"include_usage": True}, **options}
        reply = Reply(self._url)
        async with self._asked("POST", "/v1/chat/completions", json=body) as response:
            if response.status != 200:
                self._check(response.status, await response.read())
            async for data in response.content.iter_any():
                reply.push(data)
        return reply.finish()

    def _check(self, status: int, content: bytes) -> None:
        if status == 200:
            return
        try:
            reason = reason_of(json.loads(content)["error"])
        except (ValueError, KeyError, TypeError):
            reason = content[:200].decode("utf-8", "replace")
        raise EndpointError(f"{self._url} refused with status {status}: {reason}")

    @asynccontextmanager
    async def _asked(self, method: str, path: str, **body: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """A response; what goes wrong on the way is one kind of error."""
        import aiohttp

        try:
            async with self._http.request(method, self._url + path, allow_redirects=False, **body) as response:
                yield response
        except TimeoutError:
            raise EndpointError(
                f"{self._url}{path} sent nothing for {self._stall:g} seconds: it stalls, or needs a longer --stall"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            why = str(error) or type(error).__name__
            raise EndpointError(f"{self._url}{path} cannot be reached, or went away ({why})") from None


@asynccontextmanager
async def connect(url: str, *, key: str | None, clients: int, stall: float) -> AsyncIterator[Endpoint]:
    """A connection to a server.

    Args:
        url: its root, with or without ``/v1`` behind it.
        key: API key, or None.
        clients: requests under way at a time, each on a connection of its own.
        stall: seconds without a byte after which it is given up.

    Raises:
        ConfigError: aiohttp is missing, or the address is none.
    """
    try:
        import aiohttp
    except ImportError:
        raise ConfigError('servers are driven with aiohttp: pip install "holdover[bench]"') from None
    root = url.rstrip("/").removesuffix("/v1")
    if not root.startswith(("http://", "https://")):
        raise ConfigError(f"{url!r} is no address of a server: write one such as http://127.0.0.1:8000")
    http = aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=stall),
        connector=aiohttp.TCPConnector(limit=clients + 1),
    )
    async with http:
        yield Endpoint(http, root, stall)
