"""Which caller a line of the log is about, also where the engine's thread writes it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# the caller's own name of what it is doing; set by servers
ORIGIN: ContextVar[str | None] = ContextVar("holdover_origin", default=None)
# requests under way, by the id that the engine's messages name; written by callers' threads, read by any
_origins: dict[str, str] = {}


@contextmanager
def remembered(request_id: str) -> Iterator[None]:
    """Keep the caller's name of an engine's request while it is under way."""
    origin = ORIGIN.get()
    if origin is not None:
        _origins[request_id] = origin
    try:
        yield
    finally:
        _origins.pop(request_id, None)


def origin_of(record: logging.LogRecord) -> str | None:
    """The caller that a record is about: the one in whose context it was written, or whose request it names."""
    if (origin := ORIGIN.get()) is not None:
        return origin
    arguments = record.args if isinstance(record.args, tuple) else ()
    return next((_origins[one] for one in arguments if isinstance(one, str) and one in _origins), None)
