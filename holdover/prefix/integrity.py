"""Recompute every counter of a prefix cache from its tree and compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from holdover.errors import IntegrityError
from holdover.prefix import tree
from holdover.prefix.cache import PrefixCache
from holdover.prefix.hold import Hold
from holdover.prefix.tree import Node, Root
from holdover.state import KeyChain
from holdover.store import Checkpoint, LeaseState, SlotAllocator, StateTiers


class Standing(NamedTuple):
    """Where a state stands among a tree's checkpoints, as `Node.saved` and `Node.branches`."""

    saved: int
    branches: int


def check_integrity(
    cache: PrefixCache,
    holds: Sequence[Hold] = (),
    *,
    owned_rows: int = 0,
    live_slots: int = 0,
    others: Sequence[Checkpoint] = (),
) -> None:
    """Verify that nothing leaked and that every pool balances. Mutates nothing.

    Args:
        cache: the cache, between two calls on it.
        holds: every hold that is not released.
        owned_rows: KV rows that running sequences, or others who share the pool, own themselves.
        live_slots: slots that they own.
        others: checkpoints of those who share the tiers.

    Raises:
        IntegrityError: with the ids of what leaked.
    """
    tiers = cache.tiers
    tiers.native.check_integrity()
    if tiers.packed is not None:
        tiers.packed.check_integrity()
    cache.kv.check_integrity()
    nodes = [node for root in cache.roots.values() for node in tree.descendants(root)]
    _check_roots(cache)
    _check_structure(nodes)
    _check_standings(cache)
    _check_orders(cache, nodes, others)
    _check_locks(cache, nodes, [*holds, *cache.pins.holds()])
    _check_pins(cache, nodes)
    _check_keys(cache)
    _check_slots(cache, nodes, live_slots, others)
    _check_rows(cache, nodes, owned_rows)
    balances = {"native": tiers.balance("native"), "packed": tiers.balance("compressed"), "row": cache.rows.balance()}
    for name, balance in balances.items():
        if balance.free + balance.cached + balance.locked != balance.total:
            raise IntegrityError(f"{name} pool does not balance: {balance}")


def _check_roots(cache: PrefixCache) -> None:
    for namespace, root in cache.roots.items():
        if root.namespace != namespace or (root.is_leaf and not root.locks):
            raise IntegrityError(f"root of namespace {namespace!r} is another's, or was left behind empty")


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


def standings(root: Root) -> dict[Node, Standing]:
    """Where each node of a tree stands, by definition. O(nodes)."""
    nodes: list[Node] = [root, *tree.descendants(root)]
    above, branches = dict.fromkeys(nodes, 0), dict.fromkeys(nodes, 0)
    for node in nodes[1:]:
        assert node.parent is not None
        above[node] = above[node.parent] if node.parent.checkpoint is None else node.parent.depth
    # children first
    for node in reversed(nodes):
        branches[node] += node.is_leaf
        checkpoint = node.checkpoint
        if node.parent is not None:
            is_unproven = checkpoint is not None and node.is_leaf and not checkpoint.hits
            branches[node.parent] += branches[node] if checkpoint is None else is_unproven
    return {node: Standing(node.depth - above[node], branches[node]) for node in nodes}


def _check_standings(cache: PrefixCache) -> None:
    for root in cache.roots.values():
        for node, standing in standings(root).items():
            for one in (node, node.checkpoint):
                if one is not None and (found := Standing(one.saved, one.branches)) != standing:
                    raise IntegrityError(f"node at depth {node.depth} or its checkpoint has {found}, not {standing}")


def _check_orders(cache: PrefixCache, nodes: Sequence[Node], others: Sequence[Checkpoint]) -> None:
    lost = [node.depth for node in nodes if node not in cache.rows.order]
    if lost or len(cache.rows.order) != len(nodes):
        raise IntegrityError(f"nodes at depths {lost} have no place in the eviction order")
    place = {id(node): i for i, node in enumerate(cache.rows.order)}
    early = [n.depth for n in nodes if n.parent is not None and place.get(id(n.parent), len(place)) < place[id(n)]]
    if early:
        raise IntegrityError(f"nodes at depths {early} are newer in the eviction order than the nodes above them")
    order, states = cache.tiers.order, [*(n.checkpoint for n in nodes if n.checkpoint is not None), *others]
    if any(state not in order for state in states) or len(order) != len(states):
        own = len(states) - len(others)
        raise IntegrityError(f"{own} checkpoints in the tree and {len(others)} of others, {len(order)} in their order")


def _check_locks(cache: PrefixCache, nodes: Sequence[Node], holds: Sequence[Hold]) -> None:
    wanted = Counter(id(node) for hold in holds for node in hold.node.path())
    everyone = [*nodes, *cache.roots.values()]
    if strays := set(wanted) - {id(node) for node in everyone}:
        raise IntegrityError(f"{len(strays)} nodes are held but are not in the tree")
    wrong = [(node.depth, node.locks, wanted[id(node)]) for node in everyone if node.locks != wanted[id(node)]]
    if wrong:
        raise IntegrityError(f"locks as (depth, counted, expected): {wrong[:8]}")


def _check_pins(cache: PrefixCache, nodes: Sequence[Node]) -> None:
    pinned = {id(hold.node) for hold in cache.pins.holds()}
    kept = [node for node in nodes if node.checkpoint is not None and node.checkpoint.is_kept]
    if strays := [node.depth for node in kept if id(node) not in pinned]:
        raise IntegrityError(f"checkpoints at depths {strays} are kept and not pinned")
    # a pin may have lost its checkpoint, if that was damaged; it never has one that may be evicted
    lost = [n.depth for n in nodes if id(n) in pinned and n.checkpoint is not None and not n.checkpoint.is_kept]
    if lost:
        raise IntegrityError(f"pinned checkpoints at depths {lost} are not kept")


def _check_keys(cache: PrefixCache) -> None:
    for root in cache.roots.values():
        chains = {id(root): KeyChain(root.namespace)}
        for node in tree.descendants(root):
            chains[id(node)] = chain = chains[id(node.parent)].copy()
            chain.extend(node.tokens)
            if node.checkpoint is not None and node.checkpoint.header.key != chain.key():
                raise IntegrityError(f"checkpoint at depth {node.depth} is the state of other tokens")


def _check_slots(cache: PrefixCache, nodes: Sequence[Node], live_slots: int, others: Sequence[Checkpoint]) -> None:
    tiers = cache.tiers
    checkpoints = [node.checkpoint for node in nodes if node.checkpoint is not None]
    for node in nodes:
        if node.checkpoint is not None and not (
            _is_what_it_says(tiers, node.checkpoint) and node.checkpoint.header.depth == node.depth
        ):
            where = f"{node.checkpoint.tier} slot {node.checkpoint.slot}"
            raise IntegrityError(f"checkpoint at depth {node.depth}: {where} holds another state")
    checkpoints += others
    _check_leases(tiers.native, [c for c in checkpoints if c.tier == "native"], live_slots, moving=0)
    if tiers.packed is not None:
        moving = sum(c.demotion is not None for c in checkpoints)
        _check_leases(tiers.packed, [c for c in checkpoints if c.tier == "compressed"], 0, moving)


def _is_what_it_says(tiers: StateTiers, checkpoint: Checkpoint) -> bool:
    if checkpoint.tier == "native":
        pool = tiers.native.pool
        return pool.is_whole(checkpoint.slot) and pool.header(checkpoint.slot) == checkpoint.header
    return tiers.packed is not None and tiers.packed.pool.header(checkpoint.slot) == checkpoint.header


def _check_leases(slots: SlotAllocator[Any], checkpoints: Sequence[Checkpoint], live_slots: int, moving: int) -> None:
    cached, live = slots.count(LeaseState.CACHED), slots.count(LeaseState.LIVE)
    is_shared = len({c.slot for c in checkpoints}) != len(checkpoints)
    if is_shared or cached != len(checkpoints) + moving or live != live_slots:
        raise IntegrityError(
            f"{slots.tier} slots: {cached} cached leases for {len(checkpoints)} checkpoints and {moving} on their way, "
            f"{live} live leases for {live_slots} sequences"
        )


def _check_rows(cache: PrefixCache, nodes: Sequence[Node], owned_rows: int) -> None:
    rows = Counter(row for node in nodes for row in node.rows.tolist())
    if twice := [row for row, count in rows.items() if count > 1]:
        raise IntegrityError(f"KV rows {twice[:8]} are owned by two nodes")
    kv = cache.kv
    if rows and not kv.are_used(torch.tensor(list(rows))):
        raise IntegrityError("KV rows are in the tree and free at once")
    if kv.num_free + len(rows) + owned_rows != kv.num_rows:
        raise IntegrityError(
            f"KV rows leaked: {kv.num_free} free + {len(rows)} in the tree + {owned_rows} of sequences != {kv.num_rows}"
        )
