"""What the cache holds, as a list."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from holdover.prefix.cache import PrefixCache
from holdover.prefix.tree import Node, Root
from holdover.state import Lineage


@dataclass(frozen=True)
class CacheEntry:
    """A resident checkpoint.

    Attributes:
        key: chained hash of its tokens.
        tenant: tells namespaces apart, without saying which they are.
        depth: tokens that it has seen.
        parent: key of the checkpoint above it, or None.
        nbytes: bytes of its state.
        tier: where they are.
        lineage: what a request that resumes from it will be.
        age: seconds since it was made.
        hits: requests that resumed from it.
        is_pinned: whether it stays.
        is_spilled: whether a copy is kept below the resident tiers.
    """

    key: bytes
    tenant: str
    depth: int
    parent: bytes | None
    nbytes: int
    tier: str
    lineage: Lineage
    age: float
    hits: int
    is_pinned: bool
    is_spilled: bool


def entries(cache: PrefixCache) -> list[CacheEntry]:
    """Every resident checkpoint, by tenant, then depth first. Mutates nothing. O(nodes)."""
    now = time.monotonic()
    return [entry for root in cache.roots.values() for entry in _below(cache, root, now)]


def _below(cache: PrefixCache, root: Root, now: float) -> Iterator[CacheEntry]:
    tenant = hashlib.sha256(root.namespace).hexdigest()[:8]
    # with the lineage of the rows and the key of the last checkpoint above
    pending: list[tuple[Node, Lineage, bytes | None]] = [(root, root.lineage, None)]
    while pending:
        node, above, parent = pending.pop()
        lineage = above.worst(node.lineage)
        if node.checkpoint is not None:
            yield _entry(cache, node, lineage, tenant, parent, now)
            parent = node.checkpoint.header.key
        pending += [(child, lineage, parent) for child in node.children.values()]


def _entry(cache: PrefixCache, node: Node, rows: Lineage, tenant: str, parent: bytes | None, now: float) -> CacheEntry:
    checkpoint = node.checkpoint
    assert checkpoint is not None
    return CacheEntry(
        key=checkpoint.header.key,
        tenant=tenant,
        depth=node.depth,
        parent=parent,
        nbytes=cache.tiers.checkpoint_bytes(checkpoint.tier),
        tier=checkpoint.tier,
        lineage=checkpoint.restored.worst(rows),
        age=now - checkpoint.created,
        hits=checkpoint.hits,
        is_pinned=checkpoint.is_kept,
        is_spilled=node.spilled is not None,
    )
