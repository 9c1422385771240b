"""Chunks that are built because somebody says so, and not for a request."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from holdover.chunks import Chunk, ChunkEntry
from holdover.engine.async_engine import AsyncEngine
from holdover.engine.chunks.builds import BuildJob
from holdover.engine.core import EngineCore


async def add(engine: AsyncEngine, chunks: Sequence[Chunk], *, salt: str = "") -> tuple[list[ChunkEntry], int]:
    """Build the chunks that are not kept yet.

    Args:
        engine: the engine.
        chunks: what is wanted; one may be there several times.
        salt: tenant that they belong to.

    Returns:
        The chunks that are kept afterwards, and how many were built. A chunk may have made room for a later one.

    Raises:
        CapacityError: there is no room for one of them.
    """
    namespace, wanted = engine.engine.prepare.namespace(salt), list(dict.fromkeys(chunks))
    built = 0
    for chunk in wanted:
        job = await engine.call(partial(_want, namespace=namespace, chunk=chunk))
        if job is None:
            continue
        # a call returns between two steps of the engine, so this waits for one step at a time
        while not job.is_done:
            await engine.call(_next_step)
        if job.error is not None:
            raise job.error
        built += 1
    found = await engine.call(lambda core: [core.chunks.store.find(namespace, chunk.tokens) for chunk in wanted])
    return [entry for entry in found if entry is not None], built


def _next_step(_: EngineCore) -> None:
    """Nothing; it is done between two steps."""


def _want(core: EngineCore, namespace: bytes, chunk: Chunk) -> BuildJob | None:
    """The job that builds a chunk; None if it is kept already."""
    if core.chunks.store.find(namespace, chunk.tokens) is not None:
        return None
    return core.chunks.builds.want(namespace, chunk.tokens)
