"""Recompute every counter of a chunk store from its entries and compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from holdover.chunks.entry import ChunkEntry
from holdover.chunks.extras import Extras
from holdover.chunks.store import ChunkStore, Hold
from holdover.errors import CheckpointMismatchError, IntegrityError


def check_integrity(store: ChunkStore, holds: Sequence[Hold] = ()) -> None:
    """Verify that every entry is whole, owned once and pinned as often as it is read. Mutates nothing.

    The pools are shared: whoever owns them checks that they balance, with `ChunkStore.rows` of the chunks among them.

    Args:
        store: between two calls on it.
        holds: every hold that is not released.

    Raises:
        IntegrityError: with what leaked, or is another's.
    """
    entries = list(store.entries.values())
    _check_keys(store)
    if set(map(id, store.order)) != set(map(id, entries)):
        raise IntegrityError(f"{len(entries)} chunks, {len(store.order)} in the order of eviction")
    pins = Counter(id(entry) for hold in holds for entry in hold.entries)
    wrong = [(len(entry), entry.pins, pins[id(entry)]) for entry in entries if entry.pins != pins[id(entry)]]
    if wrong or set(pins) - {id(entry) for entry in entries}:
        raise IntegrityError(f"pins of chunks as (tokens, counted, expected): {wrong[:8]}; or a chunk held is gone")
    for entry in entries:
        _check_entry(store, entry)
    _check_rows(store)
    if store.rows > store.max_rows or store.extra_bytes > store.max_extra_bytes:
        raise IntegrityError(f"chunks own {store.rows} rows and {store.extra_bytes} bytes of extras: over a limit")


def _check_keys(store: ChunkStore) -> None:
    if both := set(store.entries) & set(store.building):
        raise IntegrityError(f"{len(both)} chunks are kept and being built at once")
    if [owner.chain.key() for owner in store.owners] != [*store.entries, *store.building]:
        raise IntegrityError("a chunk stands under another's key")


def _check_entry(store: ChunkStore, entry: ChunkEntry) -> None:
    checkpoint, layout = entry.checkpoint, store.tiers.native.pool.layout
    if checkpoint not in store.tiers.order:
        raise IntegrityError(f"the state of a chunk of {len(entry)} tokens is not among the checkpoints")
    try:
        store.tiers.verify(checkpoint, entry.chain)
    except CheckpointMismatchError as error:
        raise IntegrityError(f"the state of a chunk of {len(entry)} tokens is another's: {error}") from error
    if entry.extras.nbytes != Extras.bytes_for(layout, store.options, len(entry)):
        raise IntegrityError(f"a chunk of {len(entry)} tokens has {entry.extras.nbytes} bytes of extras")


def _check_rows(store: ChunkStore) -> None:
    owners = store.owners
    if wrong := [len(owner.tokens) for owner in owners if len(owner.rows) != len(owner.tokens)]:
        raise IntegrityError(f"chunks of {wrong[:8]} tokens have other numbers of rows")
    rows = torch.cat([owner.rows for owner in owners]) if owners else torch.empty(0, dtype=torch.int64)
    if not store.kv.are_used(rows):
        raise IntegrityError("a row is owned by two chunks, or by one and free at once")
