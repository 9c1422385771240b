"""One streamed reply as it arrives: when its first token was there, and in the end what was said."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdover.errors import EndpointError

_DONE = b"[DONE]"
_ERROR = b'"error"'


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

    Only what comes up to the first token is read at once, and what may be an error. All else is read when the stream
    has ended and its times are taken: reading a token takes about as long as a server takes to make one for each of
    its clients.

    Args:
        url: of the server, for messages.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._start = time.perf_counter()
        self._first: float | None = None
        self._received: list[bytes] = []
        self._rest = b""

    def push(self, data: bytes) -> None:
        """Take what has just arrived.

        Raises:
            EndpointError: it is no part of a reply, as far as it is read yet, or says why the reply is broken off.
        """
        now = time.perf_counter()
        self._received.append(data)
        whole, _, self._rest = (self._rest + data).rpartition(b"\n")
        # a connection that stalls or is cut behind an error never comes to its end
        if self._first is None or _ERROR in whole:
            parts = [self._part(event) for event in _events(whole) if event != _DONE]
            if self._first is None and any(part.has_token for part in parts):
                self._first = now

    def finish(self) -> Answer:
        """The stream has ended.

        Raises:
            EndpointError: it broke off, or is no reply.
        """
        end = time.perf_counter()
        # without a last line that does not end: it was cut
        events = _events(b"".join(self._received).rpartition(b"\n")[0])
        parts = [self._part(event) for event in events if event != _DONE]
        if _DONE not in events:
            raise EndpointError(f"{self._url} ended a stream before its reply was whole")
        usage = next((part.usage for part in reversed(parts) if part.usage is not None), _Usage())
        return Answer(
            "".join(part.text for part in parts),
            1e3 * ((self._first or end) - self._start),
            1e3 * (end - self._start),
            *usage,
        )

    def _part(self, event: bytes) -> _Part:
        shown = event[:80].decode("utf-8", "replace")
        try:
            chunk = json.loads(event)
        except ValueError:
            raise EndpointError(f"{self._url} sent a line of a stream that is not JSON: {shown!r}") from None
        try:
            if (error := chunk.get("error")) is not None:
                raise EndpointError(f"{self._url} broke a reply off: {reason_of(error)}")
            return _part_of(chunk)
        except (TypeError, AttributeError):
            raise EndpointError(f"{self._url} sent a line of a stream that is no chunk: {shown!r}") from None


def reason_of(error: Any) -> str:
    """What an answer's ``error`` says."""
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


class _Usage(NamedTuple):
    """Counts of tokens, as `Answer` has them."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


class _Part(NamedTuple):
    """What a chunk adds to a reply: text, whether it shows that a token was there, and usage if it has any."""

    text: str
    has_token: bool
    usage: _Usage | None


def _events(lines: bytes) -> list[bytes]:
    """The data of each event of whole lines."""
    # of bytes: a text may hold characters that end lines elsewhere
    return [line[5:].strip() for line in lines.splitlines() if line.startswith(b"data:")]


def _part_of(chunk: Any) -> _Part:
    """Read a chunk; a `TypeError` or an `AttributeError` says that it is none."""
    choice: Any = next(iter(chunk.get("choices") or ()), {})
    delta = choice.get("delta") or {}
    content = delta.get("content") or ""
    if not isinstance(content, str):
        raise TypeError("content")
    # what is thought stands in no history, but is generated
    thought = delta.get("reasoning_content") or delta.get("reasoning")
    has_token = bool(content or thought or choice.get("finish_reason"))
    usage = chunk.get("usage")
    return _Part(content, has_token, _usage_of(usage) if usage else None)


def _usage_of(usage: Any) -> _Usage:
    details = usage.get("prompt_tokens_details") or {}
    counts = (usage.get("prompt_tokens"), details.get("cached_tokens"), usage.get("completion_tokens"))
    if not all(count is None or isinstance(count, int) for count in counts):
        raise TypeError("usage")
    return _Usage(*counts)
