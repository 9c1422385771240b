"""An OpenAI-compatible server, as a client of streamed chats sees it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdover.errors import ConfigError, EndpointError

if TYPE_CHECKING:
    import httpx

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


@dataclass(frozen=True)
class Answer:
    """One streamed reply.

    Attributes:
        text: what was said.
        ttft_ms: from sending the request to the first text.
        e2e_ms: to the end of the stream.
        prompt_tokens: as the server counted them; None if it sends no usage.
        cached_tokens: those that it did not compute; None if it does not say.
        completion_tokens: tokens of the reply; None likewise.
    """

    text: str
    ttft_ms: float
    e2e_ms: float
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None


class Endpoint:
    """A server; made by `connect`.

    Args:
        http: a client whose addresses are relative to the server's root.
        url: that root, for messages.
        stall: seconds without a byte after which it is given up.
    """

    def __init__(self, http: httpx.AsyncClient, url: str, stall: float) -> None:
        self._http = http
        self._url = url
        self._stall = stall

    async def model(self) -> Served:
        """The first model that it serves.

        Raises:
            EndpointError: it does not say.
        """
        async with self._asking("/v1/models"):
            response = await self._http.get("/v1/models")
            self._check(response.status_code, response.content)
            try:
                found = response.json()["data"][0]
                context = found.get("max_model_len")
                return Served(str(found["id"]), context if isinstance(context, int) else None)
            except (ValueError, LookupError, TypeError, AttributeError):
                raise EndpointError(f"{self._url}/v1/models lists no model: name one with --model") from None

    async def metrics(self) -> str | None:
        """Its metrics in Prometheus' text format; None if it has none."""
        async with self._asking("/metrics"):
            response = await self._http.get("/metrics")
            return response.text if response.status_code == 200 else None

    async def flush(self) -> bool:
        """Empty its cache, if it is Holdover's; whether that was done."""
        async with self._asking("/v1/cache/flush"):
            return (await self._http.post("/v1/cache/flush")).status_code == 200

    async def chat(self, messages: Sequence[dict[str, str]], **options: Any) -> Answer:
        """Ask for the next message of a conversation.

        Args:
            messages: the conversation so far.
            options: further fields of the request.

        Raises:
            EndpointError: the server cannot be reached, refuses, stalls, or breaks off.
        """
        body = {"messages": list(messages), "stream": True, "stream_options": {"include_usage": True}, **options}
        start = time.perf_counter()
        first, text, usage, is_done = None, [], None, False
        async with self._asking("/v1/chat/completions"):
            async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    self._check(response.status_code, await response.aread())
                async for line in response.aiter_lines():
                    chunk = self._event(line)
                    if chunk is None:
                        is_done = is_done or line == "data: [DONE]"
                        continue
                    usage = chunk.get("usage") or usage
                    said, counts = _said(chunk)
                    text.append(said)
                    if first is None and counts:
                        first = time.perf_counter()
            if not is_done:
                raise EndpointError(f"{self._url} ended a stream before its reply was whole")
        end = time.perf_counter()
        return _answer("".join(text), 1e3 * ((first or end) - start), 1e3 * (end - start), usage)

    def _event(self, line: str) -> dict[str, Any] | None:
        """A chunk of a stream; None for lines that carry none."""
        if not line.startswith("data:") or line == "data: [DONE]":
            return None
        try:
            chunk = json.loads(line[5:])
        except ValueError:
            raise EndpointError(f"{self._url} sent a line of a stream that is not JSON: {line[:80]!r}") from None
        if not isinstance(chunk, dict):
            raise EndpointError(f"{self._url} sent a line of a stream that is no chunk: {line[:80]!r}")
        if (error := chunk.get("error")) is not None:
            raise EndpointError(f"{self._url} broke a reply off: {_reason(error)}")
        return chunk

    def _check(self, status: int, content: bytes) -> None:
        if status == 200:
            return
        try:
            reason = _reason(json.loads(content)["error"])
        except (ValueError, KeyError, TypeError):
            reason = content[:200].decode("utf-8", "replace")
        raise EndpointError(f"{self._url} refused with status {status}: {reason}")

    @asynccontextmanager
    async def _asking(self, path: str) -> AsyncIterator[None]:
        """What goes wrong on the way, as one kind of error."""
        import httpx

        try:
            yield
        except httpx.TimeoutException:
            raise EndpointError(
                f"{self._url}{path} sent nothing for {self._stall:g} seconds: it stalls, or needs a longer --stall"
            ) from None
        except httpx.HTTPError as error:
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
        ConfigError: httpx is missing, or the address is none.
    """
    try:
        import httpx
    except ImportError:
        raise ConfigError('servers are driven with httpx: pip install "holdover[bench]"') from None
    root = url.rstrip("/").removesuffix("/v1")
    if not root.startswith(("http://", "https://")):
        raise ConfigError(f"{url!r} is no address of a server: write one such as http://127.0.0.1:8000")
    http = httpx.AsyncClient(
        base_url=root,
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=httpx.Timeout(stall, connect=_CONNECT),
        limits=httpx.Limits(max_connections=clients + 1, max_keepalive_connections=clients + 1),
        trust_env=False,
    )
    async with http:
        yield Endpoint(http, root, stall)


def _said(chunk: dict[str, Any]) -> tuple[str, bool]:
    """Text that a chunk adds to the reply, and whether it shows that a token was there."""
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        content = delta.get("content") or ""
        # what is thought stands in no history, but is generated
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        return content, bool(content or thought or choice.get("finish_reason"))
    return "", False


def _answer(text: str, ttft_ms: float, e2e_ms: float, usage: dict[str, Any] | None) -> Answer:
    counts = usage or {}
    details = counts.get("prompt_tokens_details") or {}
    return Answer(
        text,
        ttft_ms,
        e2e_ms,
        counts.get("prompt_tokens"),
        details.get("cached_tokens"),
        counts.get("completion_tokens"),
    )


def _reason(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
