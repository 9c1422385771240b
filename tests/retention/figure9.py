"""DASC Figure 9 as it is written, step by step: what the placement is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations


def compute_permutation(costs: Sequence[Sequence[int]], ranks: int) -> list[list[int]]:
    """Figure 9a: owner of each bundle."""
    owners = greedy(costs, ranks)
    while (swap := best_swap(costs, owners, ranks)) is not None:
        layer_owners, first, second = owners[swap[0]], swap[1], swap[2]
        layer_owners[first], layer_owners[second] = layer_owners[second], layer_owners[first]
    return owners


def greedy(costs: Sequence[Sequence[int]], ranks: int) -> list[list[int]]:
    """Steps 1 and 2."""
    loads = [0] * ranks
    owners = []
    for layer in costs:
        quota = len(layer) // ranks
        used = [0] * ranks
        owner = [-1] * len(layer)
        for bundle in sorted(range(len(layer)), key=lambda b: (-layer[b], b)):
            _, _, _, rank = min(
                (loads[r] + layer[bundle], loads[r], used[r], r) for r in range(ranks) if used[r] < quota
            )
            owner[bundle] = rank
            used[rank] += 1
            loads[rank] += layer[bundle]
        owners.append(owner)
    return owners


def best_swap(
    costs: Sequence[Sequence[int]], owners: Sequence[Sequence[int]], ranks: int
) -> tuple[int, int, int] | None:
    """Steps 4 and 5: layer and bundles of the first swap that improves most."""
    best, score = None, objective(costs, owners, ranks)
    for layer, owner in enumerate(owners):
        for first, second in combinations(range(len(owner)), 2):
            if owner[first] != owner[second]:
                swapped = [list(other) for other in owners]
                swapped[layer][first], swapped[layer][second] = owner[second], owner[first]
                candidate = objective(costs, swapped, ranks)
                if candidate < score:
                    best, score = (layer, first, second), candidate
    return best


def objective(costs: Sequence[Sequence[int]], owners: Sequence[Sequence[int]], ranks: int) -> tuple[int, int]:
    """Step 3: largest load, then sum of squares."""
    loads = [0] * ranks
    for layer, owner in zip(costs, owners, strict=True):
        for cost, rank in zip(layer, owner, strict=True):
            loads[rank] += cost
    return max(loads), sum(load**2 for load in loads)


def storage(computed: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Figure 9b: what each rank stores, in slot order, as (rank that computes it, its local index)."""
    ranks = range(len(computed))
    q, m = divmod(sum(computed), len(computed))
    order = sorted(ranks, key=lambda r: (-computed[r], r))
    targets = {r: q + 1 if place < m else q for place, r in enumerate(order)}
    slots: list[list[tuple[int, int]]] = []
    excess, deficit = [], []
    for r in ranks:
        kept = min(computed[r], targets[r])
        slots.append([(r, i) for i in range(targets[r])])
        excess += [(r, i) for i in range(kept, computed[r])]
        deficit += [(r, position) for position in range(kept, targets[r])]
    for unit, (r, position) in zip(excess, deficit, strict=True):
        slots[r][position] = unit
    return slots
