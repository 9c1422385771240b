"""One streamed reply as it arrives: when its first token was there, and in the end what was said."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdover.errors import EndpointError

_DONE = b"data: [DONE]"


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


class Reply:
    """Collects a stream of server-sent events.

    Only what comes up to the first token is read at once. All else is read at the end, where no time is measured any
    more: reading a token takes about as long as a server takes to make one for each of its clients.

    Args:
        url: of the server, for messages.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._start = time.perf_counter()
        self._first: float | None = None
        self._received: list[bytes] = []

    def push(self, data: bytes) -> None:
        """Take what has just arrived.

        Raises:
            EndpointError: it is no part of a reply.
        """
        now = time.perf_counter()
        self._received.append(data)
        if self._first is None and any(_said(chunk)[1] for chunk in self._chunks(whole_lines=True)):
            self._first = now

    def finish(self) -> Answer:
        """The stream has ended.

        Raises:
            EndpointError: it broke off, or is no reply.
        """
        end = time.perf_counter()
        text, usage = [], None
        for chunk in self._chunks():
            text.append(_said(chunk)[0])
            usage = chunk.get("usage") or usage
        if _DONE not in self._lines():
            raise EndpointError(f"{self._url} ended a stream before its reply was whole")
        counts = usage or {}
        details = counts.get("prompt_tokens_details") or {}
        return Answer(
            "".join(text),
            1e3 * ((self._first or end) - self._start),
            1e3 * (end - self._start),
            counts.get("prompt_tokens"),
            details.get("cached_tokens"),
            counts.get("completion_tokens"),
        )

    def _lines(self, *, whole: bool = False) -> list[bytes]:
        """Lines so far; ``whole``: without the last one, which may go on."""
        # of bytes: a text may hold characters that end lines elsewhere
        lines = b"".join(self._received).splitlines(keepends=whole)
        return [line for line in lines if line.endswith((b"\n", b"\r"))] if whole else lines

    def _chunks(self, *, whole_lines: bool = False) -> Iterator[dict[str, Any]]:
        for line in self._lines(whole=whole_lines):
            if line.startswith(b"data:") and not line.startswith(_DONE):
                yield self._chunk(line[5:])

    def _chunk(self, data: bytes) -> dict[str, Any]:
        shown = data[:80].decode("utf-8", "replace").strip()
        try:
            chunk = json.loads(data)
        except ValueError:
            raise EndpointError(f"{self._url} sent a line of a stream that is not JSON: {shown!r}") from None
        if not isinstance(chunk, dict):
            raise EndpointError(f"{self._url} sent a line of a stream that is no chunk: {shown!r}")
        if (error := chunk.get("error")) is not None:
            raise EndpointError(f"{self._url} broke a reply off: {reason_of(error)}")
        return chunk


def reason_of(error: Any) -> str:
    """What an answer's ``error`` says."""
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def _said(chunk: dict[str, Any]) -> tuple[str, bool]:
    """Text that a chunk adds to the reply, and whether it shows that a token was there."""
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        content = delta.get("content") or ""
        # what is thought stands in no history, but is generated
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        return content, bool(content or thought or choice.get("finish_reason"))
    return "", False
