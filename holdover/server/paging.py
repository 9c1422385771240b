"""Lists in pages, whose entries are known by the beginning of their keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from fastapi import Request

from holdover.errors import RequestError
from holdover.server.wire import Json

T = TypeVar("T")
# where an entry stands in its list: a number that does not change, and its id
Place = tuple[int, str]

MAX_PAGE = 1000
# enough of a key to tell any two apart
_ID_BYTES = 8
_CURSOR = re.compile(r"(\d{1,12})-([0-9a-f]{16})", re.ASCII)
ID = re.compile(r"[0-9a-f]{16}", re.ASCII)
# what `Page.asked` reads, for the API's description
PAGE = (
    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}},
    {"name": "after", "in": "query", "schema": {"type": "string", "pattern": "^[0-9]{1,12}-[0-9a-f]{16}$"}},
)


def id_of(key: bytes) -> str:
    """A key as clients see it."""
    return key[:_ID_BYTES].hex()


class Page(NamedTuple):
    """A part of a list.

    Attributes:
        limit: how many entries to show.
        after: the place behind which they begin; None for the first.
    """

    limit: int
    after: Place | None

    @classmethod
    def asked(cls, request: Request) -> Page:
        """What a request's query asks for.

        Raises:
            RequestError: it cannot be read.
        """
        asked = dict(request.query_params)
        limit, after = asked.pop("limit", "100"), asked.pop("after", None)
        if asked:
            raise RequestError(f"unknown parameter: {min(asked)}", param=min(asked), code="unknown_parameter")
        if not re.fullmatch(r"[0-9]{1,4}", limit) or not 1 <= int(limit) <= MAX_PAGE:
            raise RequestError(f"limit must be between 1 and {MAX_PAGE}", param="limit")
        if after is None:
            return cls(int(limit), None)
        place = _CURSOR.fullmatch(after)
        if place is None:
            raise RequestError("after must be the 'next' of the page before", param="after")
        return cls(int(limit), (int(place[1]), place[2]))

    def of(self, found: Iterable[T], place: Callable[[T], Place], body: Callable[[T], Json]) -> Json:
        """The page of ``found``, in the order of ``place``, as clients see it."""
        every = sorted(found, key=place)
        rest = [one for one in every if self.after is None or place(one) > self.after]
        page = rest[: self.limit]
        more = "{}-{}".format(*place(page[-1])) if len(rest) > self.limit else None
        return {"object": "list", "data": [body(one) for one in page], "total": len(every), "next": more}
