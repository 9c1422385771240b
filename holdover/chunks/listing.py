"""What a chunk store holds, as a list."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

from holdover.chunks.store import ChunkStore


@dataclass(frozen=True)
class ListedChunk:
    """A chunk that is kept.

    Attributes:
        key: its content key.
        tenant: tells namespaces apart, without saying which they are; as the list of checkpoints does.
        tokens: how many it has.
        nbytes: bytes of its rows, its state and its extras.
        tier: where its state is.
        age: seconds since it was built.
        hits: prompts that were composed with it.
        extras: names of what is kept beyond rows and state.
        is_held: whether a request reads it.
    """

    key: bytes
    tenant: str
    tokens: int
    nbytes: int
    tier: str
    age: float
    hits: int
    extras: tuple[str, ...]
    is_held: bool


def listed(store: ChunkStore) -> list[ListedChunk]:
    """Every chunk, the least recently used first. Mutates nothing."""
    now, per_token = time.monotonic(), store.kv.layout.bytes_per_token
    extras = tuple(name for name, is_kept in vars(store.options).items() if is_kept)
    return [
        ListedChunk(
            key=entry.key,
            tenant=hashlib.sha256(entry.tenant).hexdigest()[:8],
            tokens=len(entry),
            nbytes=len(entry) * per_token + store.tiers.checkpoint_bytes(entry.checkpoint.tier) + entry.extra_bytes,
            tier=entry.checkpoint.tier,
            age=now - entry.checkpoint.created,
            hits=entry.checkpoint.hits,
            extras=extras,
            is_held=entry.pins > 0,
        )
        for entry in store.order
    ]
