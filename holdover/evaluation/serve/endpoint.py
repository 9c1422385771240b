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
# below the 5 s after which uvicorn closes an idle connection: what is sent into one that closes is lost, and aiohttp
# does not repeat a POST
_IDLE = 2.0


@dataclass(frozen=True)
class ServedModel:
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

    async def model(self, name: str | None = None) -> ServedModel:
        """A model that it serves.

        Args:
            name: of which one, whether the server lists it or not; None for its first one.

        Raises:
            EndpointError: the first one is wanted, and the server does not say.
        """
        try:
            offered = await self._models()
        except EndpointError:
            if name is None:
                raise
            offered = []
        # a server need not list what it serves: what it refuses, it says when asked for a reply
        return offered[0] if name is None else next((one for one in offered if one.name == name), ServedModel(name))

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

    async def _models(self) -> list[ServedModel]:
        """Those that are listed, at least one."""
        async with self._asked("GET", "/v1/models") as response:
            content = await response.read()
            self._check(response.status, content)
        try:
            found = [_model(entry) for entry in json.loads(content)["data"]]
        except (ValueError, LookupError, TypeError, AttributeError):
            found = []
        if not found:
            raise EndpointError(f"{self._url}/v1/models lists no model: name one with --model")
        return found

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
        except aiohttp.ConnectionTimeoutError:
            raise EndpointError(f"{self._url}{path} cannot be reached within {_CONNECT:g} seconds") from None
        except TimeoutError:
            raise EndpointError(
                f"{self._url}{path} sent nothing for {self._stall:g} seconds: it stalls, or needs a longer --stall"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            why = str(error) or type(error).__name__
            raise EndpointError(f"{self._url}{path} cannot be reached, or went away ({why})") from None


def _model(entry: dict[str, Any]) -> ServedModel:
    context = entry.get("max_model_len")
    return ServedModel(str(entry["id"]), context if isinstance(context, int) else None)


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
        connector=aiohttp.TCPConnector(limit=clients + 1, keepalive_timeout=_IDLE),
    )
    async with http:
        yield Endpoint(http, root, stall)
