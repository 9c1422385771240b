"""What operators see and do of the cache: entries, pins, flush."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from holdover.engine.async_engine import AsyncEngine
from holdover.engine.chat import prefix_of
from holdover.engine.core import EngineCore
from holdover.engine.pinning import pin
from holdover.errors import RequestError
from holdover.prefix.listing import CacheEntry, entries
from holdover.prefix.pins import Pin
from holdover.server.errors import ApiError
from holdover.server.listings import Entries, Flushed, PinAnswer, PinList, Unpinned, UnpinnedAll
from holdover.server.messages import ChatMessage
from holdover.server.openapi import operation
from holdover.server.paging import ID, PAGE, Page, Place, id_of
from holdover.server.parsing import parse
from holdover.server.wire import Json, json_response, read_object

PINS = "/v1/cache/pins"


class PinRequest(BaseModel):
    """Body of ``POST /v1/cache/pins``: one prefix, in one of three forms."""

    model_config = ConfigDict(strict=True, extra="forbid")

    tokens: Annotated[list[int] | None, Field(min_length=1)] = None
    text: Annotated[str | None, Field(min_length=1)] = None
    messages: Annotated[list[ChatMessage] | None, Field(min_length=1)] = None
    cache_salt: str | None = None

    def check(self) -> None:
        """Check what no field shows alone.

        Raises:
            RequestError: there is not exactly one prefix.
        """
        if sum(one is not None for one in (self.tokens, self.text, self.messages)) != 1:
            raise RequestError("give the prefix as one of tokens, text and messages", param="tokens")

    def prefix(self, engine: AsyncEngine) -> tuple[int, ...]:
        """Its token ids, checked. Tokenizes; safe from any thread.

        Raises:
            RequestError: the engine cannot run it.
        """
        tokenizer, prepare = engine.engine.loaded.tokenizer, engine.engine.prepare
        if self.text is not None:
            return prepare.prefix(tokenizer.encode(self.text), "text")
        if self.messages is not None:
            messages = [message.for_template(as_text=False) for message in self.messages]
            return prepare.prefix(prefix_of(tokenizer, messages), "messages")
        return prepare.prefix(self.tokens or [], "tokens")


def add_cache(app: FastAPI, engine: AsyncEngine, max_body: int) -> None:
    """Add the routes."""

    @app.get(
        "/v1/cache/entries",
        **operation("List checkpoints, the shallowest first", Entries, errors=[400], parameters=PAGE),
    )
    async def list_entries(request: Request) -> Response:
        page = Page.asked(request)
        found = await engine.call(lambda core: entries(core.cache))
        return json_response(page.of(found, place, entry_body))

    @app.post("/v1/cache/flush", **operation("Drop what is neither pinned nor in use", Flushed))
    async def flush(_: Request) -> Response:
        dropped = await engine.call(lambda core: core.flush())
        return json_response({"object": "cache.flush", "checkpoints": dropped})

    @app.get(PINS, **operation("List pins", PinList))
    async def list_pins(_: Request) -> Response:
        pins = await engine.call(lambda core: list(core.cache.pins))
        return json_response({"object": "list", "data": [_pin(one) for one in pins]})

    @app.post(PINS, **operation("Pin a prefix", PinAnswer, body=PinRequest, admitted=True))
    async def add_pin(request: Request) -> Response:
        asked = parse(PinRequest, await read_object(request, max_body))
        asked.check()
        tokens = await asyncio.to_thread(asked.prefix, engine)
        return json_response(_pin(await pin(engine, tokens, salt=asked.cache_salt or "")))

    @app.delete(PINS, **operation("Unpin everything", UnpinnedAll))
    async def remove_pins(_: Request) -> Response:
        return json_response({"object": "cache.pins", "deleted": await engine.call(lambda core: core.unpin_all())})

    @app.delete(PINS + "/{pin_id}", **operation("Unpin a prefix", Unpinned, errors=[404]))
    async def remove_pin(pin_id: str) -> Response:
        def remove(core: EngineCore) -> bool:
            return core.unpin(bytes.fromhex(pin_id))

        if not ID.fullmatch(pin_id) or not await engine.call(remove):
            raise ApiError(404, f"no pin has the id {pin_id!r}", code="pin_not_found")
        return json_response({"object": "cache.pin", "id": pin_id, "deleted": True})


def place(entry: CacheEntry) -> Place:
    """Order of the list. It does not change, so that a page may begin where one was that is gone by now."""
    return entry.depth, id_of(entry.key)


def entry_body(entry: CacheEntry) -> Json:
    """An entry as clients see it."""
    return {
        "object": "cache.entry",
        "id": id_of(entry.key),
        "tenant": entry.tenant,
        "depth": entry.depth,
        "parent": None if entry.parent is None else id_of(entry.parent),
        "bytes": entry.nbytes,
        "tier": entry.tier,
        "lineage": str(entry.lineage),
        "age_s": round(entry.age, 3),
        "hits": entry.hits,
        "pinned": entry.is_pinned,
        "spilled": entry.is_spilled,
    }


def _pin(one: Pin) -> dict[str, Any]:
    return {"object": "cache.pin", "id": id_of(one.key), "depth": one.depth}
