"""Which rank computes which heads: the compute-head permutation of DASC (App. B.1, Figure 9a)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# a load that no swap can reach
_NEVER = torch.iinfo(torch.int64).max


def assign_bundles(costs: Sequence[Sequence[int]], ranks: int) -> list[Tensor]:
    """Owner of every bundle (Figure 9a): greedy by layer, then refined by swaps.

    Args:
        costs: retained units of each bundle (C_l,b), per layer; their number is a multiple of ``ranks``.
        ranks: tensor-parallel degree P.

    Returns:
        Rank of each bundle, int64 ``[bundles]`` per layer: equally many for each rank. No exchange of two bundles of
        one layer lowers the largest load or, at the same largest load, the sum of squared loads.
    """
    loads = [0] * ranks
    owners = [torch.tensor(_deal(layer, loads), dtype=torch.int64) for layer in costs]
    _refine(torch.tensor([cost for layer in costs for cost in layer], dtype=torch.int64), owners, ranks)
    return owners


def _deal(costs: Sequence[int], loads: list[int]) -> list[int]:
    """Steps 1-2 for one layer; adds to ``loads``."""
    quota = len(costs) // len(loads)
    used = [0] * len(loads)
    owners = [0] * len(costs)
    for bundle in sorted(range(len(costs)), key=lambda b: (-costs[b], b)):
        open_ranks = (r for r in range(len(loads)) if used[r] < quota)
        # the cost is the same for every rank, so L_r + C and L_r order them alike
        rank = min(open_ranks, key=lambda r: (loads[r], used[r], r))
        owners[bundle] = rank
        used[rank] += 1
        loads[rank] += costs[bundle]
    return owners


def _refine(costs: Tensor, owners: Sequence[Tensor], ranks: int) -> None:
    """Steps 3-6: apply the best improving swap until there is none. Mutates ``owners``.

    A swap only moves the difference of two costs from one rank's load to another's, so every candidate is scored at
    once from the loads.
    """
    first, second = _pairs([len(layer) for layer in owners])
    difference = costs[first] - costs[second]
    useful = difference != 0
    first, second, difference = first[useful], second[useful], difference[useful]
    owner = torch.cat(list(owners))
    loads = torch.zeros(ranks, dtype=torch.int64).index_add_(0, owner, costs)
    while (swap := _best_swap(loads, owner[first], owner[second], difference)) is not None:
        a, b = int(first[swap]), int(second[swap])
        loads[owner[a]] -= difference[swap]
        loads[owner[b]] += difference[swap]
        owner[[a, b]] = owner[[b, a]]
    for layer, refined in zip(owners, owner.split([len(layer) for layer in owners]), strict=True):
        layer.copy_(refined)


def _pairs(counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Pairs ``b1 < b2`` of bundles of one layer, numbered through the layers, in increasing order."""
    pairs, start = [], 0
    for count in counts:
        pairs.append(torch.triu_indices(count, count, offset=1) + start)
        start += count
    first, second = torch.cat(pairs, dim=1)
    return first, second


def _best_swap(loads: Tensor, source: Tensor, target: Tensor, difference: Tensor) -> int | None:
    """First of the pairs whose swap lowers (max L, sum L^2) most; None if none lowers it.

    Args:
        loads: ``[P]``.
        source: rank of each pair's first bundle ``[pairs]``.
        target: rank of its second.
        difference: cost of the first less that of the second, never 0.
    """
    if not len(difference):
        return None
    ranks = len(loads)
    alone = torch.eye(ranks, dtype=torch.bool)
    # largest load apart from those of two ranks [P, P]
    others = loads.expand(ranks, ranks, ranks).masked_fill(alone[:, None] | alone[None], 0).amax(-1)
    before, after = loads[source], loads[target]
    largest = torch.maximum(torch.maximum(before - difference, after + difference), others[source, target])
    largest.masked_fill_(source == target, _NEVER)
    peak = int(largest.min())
    candidates = (largest == peak).nonzero().squeeze(1)
    # half of how the sum of squares changes
    moved = difference[candidates]
    squares = moved * (moved - before[candidates] + after[candidates])
    # argmin names the first of equal ones
    best = int(squares.argmin())
    if (peak, int(squares[best])) < (int(loads.max()), 0):
        return int(candidates[best])
    return None
