"""Recompute every counter of a prefix cache from its tree and compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdover.errors import IntegrityError
from holdover.prefix import tree
from holdover.prefix.cache import PrefixCache
from holdover.prefix.hold import Hold
from holdover.prefix.tree import Node
from holdover.store import LeaseState


def check_integrity(
    cache: PrefixCache, holds: Sequence[Hold] = (), *, owned_rows: int = 0, live_slots: int = 0
) -> None:
    """Verify that nothing leaked and that every pool balances. Mutates nothing.

    Args:
        cache: the cache, between two calls on it.
        holds: every hold that is not released.
        owned_rows: KV rows that running sequences own themselves.
        live_slots: slots that running sequences own.

    Raises:
        IntegrityError: with the ids of what leaked.
    """
    cache.slots.check_integrity()
    cache.kv.check_integrity()
    nodes = [node for root in cache.roots.values() for node in tree.descendants(root)]
    _check_structure(nodes)
    _check_orders(cache, nodes)
    _check_locks(cache, nodes, holds)
    _check_slots(cache, nodes, live_slots)
    _check_rows(cache, nodes, owned_rows)
    for name, balance in (("slot", cache.slot_balance()), ("row", cache.row_balance())):
        if balance.free + balance.cached + balance.locked != balance.total:
            raise IntegrityError(f"{name} pool does not balance: {balance}")


def _check_structure(nodes: Sequence[Node]) -> None:
    for node in nodes:
        parent = node.parent
        if (
            parent is None
            or not node.tokens
            or len(node.rows) != len(node.tokens)
            or node.depth != parent.depth + len(node.tokens)
            or parent.children.get(node.tokens[0]) is not node
        ):
            raise IntegrityError(f"node at depth {node.depth} with {len(node.tokens)} tokens is malformed")


def _check_orders(cache: PrefixCache, nodes: Sequence[Node]) -> None:
    lost = [node.depth for node in nodes if node not in cache.row_order]
    if lost or len(cache.row_order) != len(nodes):
        raise IntegrityError(f"nodes at depths {lost} have no place in the eviction order")
    with_state = [node for node in nodes if node.checkpoint is not None]
    if any(node not in cache.state_order for node in with_state) or len(cache.state_order) != len(with_state):
        raise IntegrityError(f"{len(with_state)} checkpoints in the tree, {len(cache.state_order)} in their order")


def _check_locks(cache: PrefixCache, nodes: Sequence[Node], holds: Sequence[Hold]) -> None:
    wanted = Counter(id(node) for hold in holds for node in hold.node.path())
    everyone = [*nodes, *cache.roots.values()]
    wrong = [(node.depth, node.locks, wanted[id(node)]) for node in everyone if node.locks != wanted[id(node)]]
    if wrong:
        raise IntegrityError(f"locks as (depth, counted, expected): {wrong[:8]}")


def _check_slots(cache: PrefixCache, nodes: Sequence[Node], live_slots: int) -> None:
    checkpoints = [node.checkpoint for node in nodes if node.checkpoint is not None]
    for node in nodes:
        checkpoint = node.checkpoint
        if checkpoint is not None and (
            cache.slots.pool.header(checkpoint.slot) != checkpoint.header or checkpoint.header.depth != node.depth
        ):
            raise IntegrityError(f"checkpoint at depth {node.depth}: slot {checkpoint.slot} holds another state")
    cached, live = cache.slots.count(LeaseState.CACHED), cache.slots.count(LeaseState.LIVE)
    if len({c.slot for c in checkpoints}) != len(checkpoints) or cached != len(checkpoints) or live != live_slots:
        raise IntegrityError(
            f"{cached} cached leases for {len(checkpoints)} checkpoints, {live} live leases for {live_slots} sequences"
        )


def _check_rows(cache: PrefixCache, nodes: Sequence[Node], owned_rows: int) -> None:
    rows = Counter(row for node in nodes for row in node.rows.tolist())
    if twice := [row for row, count in rows.items() if count > 1]:
        raise IntegrityError(f"KV rows {twice[:8]} are owned by two nodes")
    kv = cache.kv
    if kv.num_free + len(rows) + owned_rows != kv.num_rows:
        raise IntegrityError(
            f"KV rows leaked: {kv.num_free} free + {len(rows)} in the tree + {owned_rows} of sequences != {kv.num_rows}"
        )
