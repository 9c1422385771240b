"""What the cache holds, as a list."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count, islice

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


def entries(cache: PrefixCache, most: int | None = None) -> list[CacheEntry]:
    """Resident checkpoints, the shallowest first. Mutates nothing.

    Args:
        cache: the cache.
        most: how many to list; None for all. Nodes that are deeper than the last one are not visited.
    """
    now = time.monotonic()
    return list(islice(_by_depth(cache, now), most))


def _by_depth(cache: PrefixCache, now: float) -> Iterator[CacheEntry]:
    # a node is never shallower than its parent; numbers order those of one depth, which cannot be compared
    numbers = count()
    # with the tenant, the lineage of the rows and the key of the last checkpoint above
    pending: list[tuple[int, int, Node, str, Lineage, bytes | None]] = [
        (root.depth, next(numbers), root, _tenant(root), root.lineage, None) for root in cache.roots.values()
    ]
    heapify(pending)
    while pending:
        _, _, node, tenant, above, parent = heappop(pending)
        lineage = above.worst(node.lineage)
        if node.checkpoint is not None:
            yield _entry(cache, node, lineage, tenant, parent, now)
            parent = node.checkpoint.header.key
        for child in node.children.values():
            heappush(pending, (child.depth, next(numbers), child, tenant, lineage, parent))


def _tenant(root: Root) -> str:
    return hashlib.sha256(root.namespace).hexdigest()[:8]


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
