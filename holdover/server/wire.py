"""Bytes on the wire: a request's JSON read within a limit, and responses written without validating them again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from holdover.errors import RequestError
from holdover.server.errors import ApiError, ClientGoneError

Json = dict[str, Any]

MAX_BODY = 4 * 2**20
# a client that is still sending hears nothing until it is done: so many times what is accepted is read and thrown away
# for it to finish
_DISCARDED = 16
_OBJECT: TypeAdapter[Json] = TypeAdapter(Json)


def encode(body: Json) -> bytes:
    """``body`` as compact JSON on one line; what is no finite number is null."""
    return to_json(body, inf_nan_mode="null")


def json_response(body: Json, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response of ``body`` as it is."""
    return Response(encode(body), status, headers, media_type="application/json")


def error_response(error: ApiError) -> Response:
    """A response that says what is wrong."""
    return json_response(error.body, error.status, error.headers)


async def read_object(request: Request, limit: int = MAX_BODY) -> Json:
    """The request's body, a JSON object of at most ``limit`` bytes.

    Raises:
        ApiError: it is too large.
        RequestError: it is not valid UTF-8, not JSON or not an object.
        ClientGoneError: the client went away before it had sent it.
    """
    body = await _read(request, limit)
    try:
        return _OBJECT.validate_json(body)
    except ValidationError as error:
        what = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise RequestError(f"the body must be a JSON object in UTF-8: {what}", code="invalid_json") from None


async def wait_for_disconnect(request: Request) -> None:
    """Return when the client has gone. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _read(request: Request, limit: int) -> bytes:
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk, more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size <= limit:
            chunks.append(chunk)
        else:
            chunks.clear()
        if size > _DISCARDED * limit:
            break
    if size > limit:
        raise ApiError(413, f"the body is larger than the {limit} bytes that are accepted", code="body_too_large")
    return b"".join(chunks)
