"""What operators see and do of chunks: the list, building, removing, and whether one is still what it should be."""

from __future__ import annotations

import asyncio
import math
from typing import Annotated

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from holdover.chunks import Chunk, ChunkEntry
from holdover.chunks.listing import ListedChunk, listed
from holdover.engine.async_engine import AsyncEngine
from holdover.engine.chunks.adding import add
from holdover.engine.chunks.verify import Part, verify
from holdover.engine.core import EngineCore
from holdover.errors import RequestError
from holdover.server.errors import ApiError
from holdover.server.listings import Chunks, Document, Removed, Verification
from holdover.server.openapi import operation
from holdover.server.paging import ID, PAGE, Page, Place, id_of
from holdover.server.parsing import parse
from holdover.server.wire import Json, json_response, read_object

CHUNKS = "/v1/chunks"


class ChunkRequest(BaseModel):
    """Body of ``POST /v1/chunks``: one document, in one of two forms."""

    model_config = ConfigDict(strict=True, extra="forbid")

    tokens: Annotated[list[int] | None, Field(min_length=1)] = None
    text: Annotated[str | None, Field(min_length=1)] = None
    cache_salt: str | None = None

    def chunks(self, engine: AsyncEngine) -> tuple[Chunk, ...]:
        """The document, cut. Tokenizes; safe from any thread.

        Raises:
            RequestError: there is not exactly one document, or the engine cannot run it.
        """
        content = self.tokens if self.text is None else self.text
        if content is None or (self.text is not None and self.tokens is not None):
            raise RequestError("give the document as one of tokens and text", param="text")
        return engine.engine.prepare.chunks(content)


def add_chunks(app: FastAPI, engine: AsyncEngine, max_body: int) -> None:
    """Add the routes."""

    @app.get(CHUNKS, **operation("List chunks, the shortest first", Chunks, errors=[400], parameters=PAGE))
    async def list_chunks(request: Request) -> Response:
        page = Page.asked(request)
        found = await engine.call(lambda core: listed(core.chunks.store))
        return json_response(page.of(found, place, chunk_body))

    @app.post(CHUNKS, **operation("Build a document's chunks", Document, body=ChunkRequest, admitted=True))
    async def add_document(request: Request) -> Response:
        asked = parse(ChunkRequest, await read_object(request, max_body))
        chunks = await asyncio.to_thread(asked.chunks, engine)
        kept, built = await add(engine, chunks, salt=asked.cache_salt or "")
        keys = {entry.key for entry in kept}
        found = await engine.call(lambda core: [one for one in listed(core.chunks.store) if one.key in keys])
        order = {entry.key: number for number, entry in enumerate(kept)}
        found.sort(key=lambda one: order[one.key])
        return json_response({"object": "list", "data": [chunk_body(one) for one in found], "built": built})

    @app.delete(CHUNKS + "/{chunk_id}", **operation("Remove a chunk", Removed, errors=[404, 409]))
    async def remove_chunk(chunk_id: str) -> Response:
        def remove(core: EngineCore) -> None:
            entry = _entry(core, chunk_id)
            if entry.pins:
                raise ApiError(409, f"a request reads the chunk {chunk_id}: ask again later", code="chunk_in_use")
            core.chunks.store.remove(entry)

        await engine.call(remove)
        return json_response({"object": "chunk", "id": chunk_id, "deleted": True})

    @app.post(
        CHUNKS + "/{chunk_id}/verify", **operation("Compute a chunk again and compare", Verification, errors=[404])
    )
    async def verify_chunk(chunk_id: str) -> Response:
        parts = await engine.call(lambda core: verify(core, _entry(core, chunk_id)))
        return json_response(
            {
                "object": "chunk.verification",
                "id": chunk_id,
                "same": all(part.is_same for part in parts),
                "parts": [_part(part) for part in parts],
            }
        )


def place(chunk: ListedChunk) -> Place:
    """Order of the list. It does not change, so that a page may begin where one was that is gone by now."""
    return chunk.tokens, id_of(chunk.key)


def chunk_body(chunk: ListedChunk) -> Json:
    """A chunk as clients see it."""
    return {
        "object": "chunk",
        "id": id_of(chunk.key),
        "tenant": chunk.tenant,
        "tokens": chunk.tokens,
        "bytes": chunk.nbytes,
        "tier": chunk.tier,
        "age_s": round(chunk.age, 3),
        "hits": chunk.hits,
        "extras": list(chunk.extras),
        "in_use": chunk.is_held,
    }


def _entry(core: EngineCore, chunk_id: str) -> ChunkEntry:
    found = None
    if ID.fullmatch(chunk_id):
        found = next((one for one in core.chunks.store.entries.values() if id_of(one.key) == chunk_id), None)
    if found is None:
        raise ApiError(404, f"no chunk has the id {chunk_id!r}", code="chunk_not_found")
    return found


def _part(part: Part) -> Json:
    # JSON has no infinity
    error = part.error if math.isfinite(part.error) else None
    return {"name": part.name, "error": error, "tolerance": part.tolerance, "same": part.is_same}
