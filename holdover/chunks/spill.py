"""Chunks below the resident tiers: written through when they are built, brought up when a prompt wants them again.

A chunk there is an entry like any other, in the namespace of chunks, that continues none: its packed state and all its
rows. Extras are not kept, so that chunks which must have some are built again instead.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import fields

from holdover.chunks.entry import ChunkEntry
from holdover.chunks.store import ChunkStore
from holdover.errors import CheckpointMismatchError, SpillError
from holdover.state import EXACT
from holdover.store.spill import Entry, EntryName, Shelf
from holdover.store.writer import SpillWriter

logger = logging.getLogger(__name__)


class ChunkSpill:
    """Moves chunks between their store and shelves. Used by the engine thread only.

    Args:
        store: the chunks.
        shelves: where entries are kept, the fastest first and the one that lasts longest last.
        writer: puts entries there.
    """

    def __init__(self, store: ChunkStore, shelves: Sequence[Shelf], writer: SpillWriter) -> None:
        self._store, self._shelves, self._writer = store, shelves, writer
        self._has_extras = any(getattr(store.options, field.name) for field in fields(store.options))

    def put(self, chunk: ChunkEntry) -> None:
        """Write a chunk through to the shelves, unless they have it or may not.

        Waits while more entries than the writer's lag are unwritten. A failure costs the copy, not the chunk.
        """
        tiers, depth = self._store.tiers, len(chunk)
        # an entry is packed: where that is not allowed, there is none
        if self._has_extras or (tiers.packed is not None and not tiers.is_packable(depth)):
            return
        if self._shelves[-1].find(depth, chunk.key) is not None:
            return
        name = EntryName(depth, chunk.key, 0, self._store.chain(chunk.tenant, ()).key())
        try:
            header, record = tiers.encode(chunk.checkpoint)
            self._writer.submit(Entry(name, header, EXACT, record, self._store.kv.read_bytes(chunk.rows)))
        except Exception:
            self._store.counters["chunks_not_spilled"] += 1
            logger.exception("a chunk of %d tokens was not spilled", depth)

    def fetch(self, namespace: bytes, tokens: Sequence[int]) -> ChunkEntry | None:
        """Bring a chunk up that the store does not have; None if no shelf has it, or what it has cannot be used.

        Mutates the store and the pools; may evict.

        Raises:
            CapacityError: there is no room for it.
        """
        key = self._store.chain(namespace, tokens).key()
        for shelf in self._shelves:
            if self._has_extras or (name := shelf.find(len(tokens), key)) is None:
                continue
            try:
                chunk = self._bring_up(namespace, tokens, shelf.get(name))
            except (SpillError, CheckpointMismatchError) as error:
                self._store.counters["chunks_passed_over"] += 1
                logger.warning("a spilled chunk of %d tokens cannot be used: %s", len(tokens), error)
            else:
                self._store.counters[f"chunks_fetched_{shelf.tier}"] += 1
                return chunk
        return None

    def _bring_up(self, namespace: bytes, tokens: Sequence[int], entry: Entry) -> ChunkEntry:
        build = self._store.begin(namespace, tokens)
        try:
            self._store.kv.write_bytes(build.rows, entry.kv)
            return self._store.admit(build, entry.state, entry.header)
        except BaseException:
            self._store.abandon(build)
            raise
