"""Whole files and ranges of files over HTTP, through the hub client's own session and its polite retries."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from holdover.errors import WeightsError

# far above any configuration or index
_LONGEST_FILE = 256 << 20
_TIMEOUT_SECONDS = 30.0
# with the client's doubling waits: seconds for a wrong host name, not a minute
_RETRIES = 2
_PLAIN = {"Accept-Encoding": "identity"}
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
# statuses that deserve better than their number
_REASONS = {
    401: "access is refused (401): it does not exist, or wants a token (hf auth login, or HF_TOKEN)",
    403: "access is refused (403): the token, or the account's permissions, do not allow it",
    404: "there is no such file (404)",
    416: "it ends before the range asked for (416): truncated or empty",
}


class Piece(NamedTuple):
    """Part of a file, and the size of all of it."""

    data: bytes
    total: int


def fetch_file(url: str, headers: Mapping[str, str]) -> bytes:
    """The whole of a small file. Raises WeightsError."""
    data = fetch_optional(url, headers)
    if data is None:
        raise WeightsError(f"{url}: {_REASONS[404]}")
    return data


def fetch_optional(url: str, headers: Mapping[str, str]) -> bytes | None:
    """The whole of a small file, or None where there is none. Raises WeightsError where that cannot be known."""
    with _response(url, headers) as response:
        if response.status_code == 404:
            return None
        _check_status(url, response, 200)
        return _body(url, response, _LONGEST_FILE)


def fetch_range(url: str, start: int, length: int, headers: Mapping[str, str]) -> Piece:
    """``length`` bytes from ``start``, fewer where the file ends before.

    Raises:
        WeightsError: the file is not there or not allowed, the server does not serve ranges, or not the one asked for.
    """
    wanted = {**headers, "Range": f"bytes={start}-{start + length - 1}"}
    with _response(url, wanted) as response:
        if response.status_code == 200:
            raise WeightsError(f"{url}: the server ignores ranges and would send the whole file; download it instead")
        _check_status(url, response, 206)
        total = _check_range(url, response, start, length)
        count = min(length, total - start)
        data = _body(url, response, count)
    if len(data) < count:
        raise WeightsError(f"{url}: {len(data)} of {count} bytes arrived: truncated on the way, try again")
    return Piece(data, total)


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Silence the client's warnings about retries: what went wrong is said once, by the error."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _response(url: str, headers: Mapping[str, str]) -> Iterator[Any]:
    """An answer whose body is not read yet; every way in which none is had becomes one message."""
    options: dict[str, Any] = {"headers": {**_PLAIN, **headers}, "timeout": _TIMEOUT_SECONDS}
    try:
        # a local model must not need the hub's client, nor wait for its import
        from huggingface_hub import utils

        client: Any = utils
        # its parts are imported on access, which also sets its logger's level
        stream = client.http_stream_backoff
        with quiet_hub(), stream("GET", url, max_retries=_RETRIES, **options) as response:
            yield response
    except WeightsError:
        raise
    except Exception as error:  # the client lets errors of its transport through, too many to name
        raise WeightsError(f"{url} cannot be read: {_reason(error)}") from error


def _check_status(url: str, response: Any, wanted: int) -> None:
    status = response.status_code
    if status != wanted:
        reason = _REASONS.get(status, f"the server answers with status {status}; wanted {wanted}")
        raise WeightsError(f"{url}: {reason}")


def _check_range(url: str, response: Any, start: int, length: int) -> int:
    """The size of the whole file, from an answer that holds the range asked for."""
    header = response.headers.get("Content-Range", "")
    match = _CONTENT_RANGE.fullmatch(header)
    first, last, total = (int(number) for number in match.groups()) if match else (-1, -1, -1)
    if first != start or last != min(start + length, total) - 1:
        raise WeightsError(f"{url}: the server answers with range {header!r}; wanted {length} bytes from {start}")
    return total


def _body(url: str, response: Any, most: int) -> bytes:
    """The body, which must not be longer than ``most``."""
    data = bytearray()
    # caught here: thrown into the client's generator, these errors would start a request whose answer nobody reads
    try:
        for chunk in response.iter_bytes():
            data += chunk
            if len(data) > most:
                break
    except Exception as error:
        raise WeightsError(
            f"{url}: the answer broke off after {len(data)} bytes ({_reason(error)}), try again"
        ) from error
    if len(data) > most:
        raise WeightsError(f"{url}: more than {most} bytes arrived")
    return bytes(data)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
