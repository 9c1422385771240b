"""Tensor-parallel placement of retained units (DASC §4.3, App. B.1, Figure 9): who computes and who stores which.

The slot of a checkpoint is as wide as the fullest rank needs, so ranks that store unequally waste memory. Placement
decides once, from the plan, which rank computes each head (`mode` hybrid) and which rank stores each unit that is
retained (storage, hybrid). Deterministic to the tie-break: every rank finds the same placement by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from holdover.arch.layout import RecurrentLayer, StateLayout
from holdover.errors import PlanError
from holdover.retention.coupled import bundle_size
from holdover.retention.permutation import assign_bundles
from holdover.retention.plan import RetentionPlan

PlacementMode = Literal["off", "storage", "hybrid"]


@dataclass(frozen=True, eq=False)
class Placement:
    """Where the retained units of one plan are computed and stored.

    Units are numbered in the plan's ragged order (`RetentionPlan.offsets`). A rank orders those that it computes by
    layer, head and channel, which is how its own ragged codec packs them, and stores first its own leading units,
    then what others sent it, by sender.

    Attributes:
        mode: what was done, which is less than what was asked where ``note`` says why.
        owners: rank that computes each head, int64 ``[heads]`` per recurrent layer, in stack order.
        units: units that each rank computes, int64 ``[n_r]`` per rank, in local order.
        sent: ``sent[s][d]`` units that rank s, which computes them, hands to rank d to store: its last ones, by d.
        note: why a wanted mode was not possible; empty if it was.
    """

    mode: PlacementMode
    owners: tuple[Tensor, ...]
    units: tuple[Tensor, ...]
    sent: tuple[tuple[int, ...], ...]
    note: str = ""

    @property
    def ranks(self) -> int:
        """Tensor-parallel degree P."""
        return len(self.units)

    @cached_property
    def computed(self) -> tuple[int, ...]:
        """Retained units that each rank computes (n_r)."""
        return tuple(len(units) for units in self.units)

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """Leading local units that each rank stores itself: min(n_r, t_r)."""
        return tuple(count - sum(sent) for count, sent in zip(self.computed, self.sent, strict=True))

    @cached_property
    def received(self) -> tuple[tuple[int, ...], ...]:
        """``received[d][s]`` units that rank d stores for rank s: `sent` transposed."""
        return tuple(zip(*self.sent, strict=True))

    @cached_property
    def stored(self) -> tuple[int, ...]:
        """Units that each rank stores (t_r, unless the mode is off)."""
        return tuple(kept + sum(received) for kept, received in zip(self.kept, self.received, strict=True))

    @property
    def slot_width(self) -> int:
        """Units that a checkpoint's slot holds on every rank: ceil(N / P), unless the mode is off."""
        return max(self.stored)

    @property
    def remote_units(self) -> int:
        """Units that a store, or a load, moves between ranks (M_remote)."""
        return sum(sum(sent) for sent in self.sent)

    @property
    def imbalance(self) -> float:
        """Stored units of the fullest rank over the mean; 1 is even, and what a plan that retains nothing has."""
        return _imbalance(self.stored)

    @property
    def compute_imbalance(self) -> float:
        """The same of the units that ranks compute."""
        return _imbalance(self.computed)

    def permutation(self, position: int) -> Tensor:
        """Heads of one recurrent layer rank by rank, int64 ``[heads]``: rank r's are row r of ``view(ranks, -1)``.

        Args:
            position: the layer's place among the recurrent ones.
        """
        return self.owners[position].argsort(stable=True)


def place(
    plan: RetentionPlan, layout: StateLayout, ranks: int, mode: PlacementMode, *, quantised: bool = False
) -> Placement:
    """Decide where the retained units of ``plan`` are computed and stored.

    Args:
        plan: what is retained.
        layout: the state that it was made for.
        ranks: tensor-parallel degree P.
        mode: ``off``: rank r computes the r-th part of every layer's heads and stores what it computes. ``storage``:
            storage is balanced over ranks. ``hybrid``: head bundles are dealt to ranks first.
        quantised: whether linear weights are packed, so that their columns cannot be permuted.

    Returns:
        The placement. Where the permutation is not possible, hybrid becomes storage; where units differ in size, so
        that counts do not measure bytes, every mode becomes off; its note says why.

    Raises:
        PlanError: the plan was made for another layout, or ranks cannot share a layer's heads equally.
    """
    _check(plan, layout, ranks)
    note = ""
    if mode == "hybrid" and (note := _why_not_permuted(layout, ranks, quantised)):
        mode = "storage"
    if mode != "off" and len({_unit_numel(layer) for layer in layout.layers}) > 1:
        mode, note = "off", "units of the model's layers differ in size, so ranks are not balanced by their number"
    owners = _dealt_heads(plan, layout, ranks) if mode == "hybrid" else _natural_heads(layout, ranks)
    units = _local_units(plan, owners, ranks)
    sent = _nothing_sent(ranks) if mode == "off" else balance_storage([len(local) for local in units])
    return Placement(mode, owners, units, sent, note)


def balance_storage(computed: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Who stores what ranks compute beyond their share (Figure 9b).

    Args:
        computed: retained units that each rank computes (n_r).

    Returns:
        ``sent[s][d]`` units that rank s hands to rank d: its last ones, in order of d.
    """
    ranks = range(len(computed))
    share, larger = divmod(sum(computed), len(computed))
    targets = [share] * len(computed)
    for rank in sorted(ranks, key=lambda r: (-computed[r], r))[:larger]:
        targets[rank] += 1
    excess = (r for r in ranks for _ in range(targets[r], computed[r]))
    deficit = (r for r in ranks for _ in range(computed[r], targets[r]))
    moves = Counter(zip(excess, deficit, strict=True))
    return tuple(tuple(moves[source, target] for target in ranks) for source in ranks)


def _check(plan: RetentionPlan, layout: StateLayout, ranks: int) -> None:
    if plan.layout != layout.shape_digest:
        raise PlanError("the plan was made for another layout of recurrent state: make one with holdover plan")
    for layer in layout.layers:
        if ranks < 1 or layer.heads % ranks:
            raise PlanError(f"{ranks} ranks cannot share the {layer.heads} heads of layer {layer.index} equally")


def _why_not_permuted(layout: StateLayout, ranks: int, quantised: bool) -> str:
    """Why head bundles cannot be dealt to ranks; empty if they can."""
    if quantised:
        return "linear weights are quantised, so heads keep their order"
    for layer in layout.layers:
        size = bundle_size(layer)
        # heads that do not fill bundles are refused with the configuration
        if (bundles := layer.heads // size) % ranks:
            return f"{ranks} ranks cannot share the {bundles} bundles of {size} heads of layer {layer.index} equally"
    return ""


def _unit_numel(layer: RecurrentLayer) -> int:
    return layer.d_v if layer.unit == "channel" else layer.d_k * layer.d_v


def _natural_heads(layout: StateLayout, ranks: int) -> tuple[Tensor, ...]:
    return tuple(torch.arange(ranks).repeat_interleave(layer.heads // ranks) for layer in layout.layers)


def _dealt_heads(plan: RetentionPlan, layout: StateLayout, ranks: int) -> tuple[Tensor, ...]:
    """Owner of every head when whole bundles are dealt by their retained units."""
    sizes = [bundle_size(layer) for layer in layout.layers]
    costs: list[list[int]] = [
        mask.view(layer.heads // size, -1).sum(1).tolist()
        for layer, size, mask in zip(layout.layers, sizes, plan.retained, strict=True)
    ]
    owners = assign_bundles(costs, ranks)
    return tuple(owner.repeat_interleave(size) for owner, size in zip(owners, sizes, strict=True))


def _local_units(plan: RetentionPlan, owners: Sequence[Tensor], ranks: int) -> tuple[Tensor, ...]:
    """Ragged numbers of the units that each rank computes."""
    owner = torch.cat(
        [
            heads.repeat_interleave(len(mask) // len(heads))[mask]
            for heads, mask in zip(owners, plan.retained, strict=True)
        ]
    )
    return tuple((owner == rank).nonzero().squeeze(1) for rank in range(ranks))


def _nothing_sent(ranks: int) -> tuple[tuple[int, ...], ...]:
    return ((0,) * ranks,) * ranks


def _imbalance(units: Sequence[int]) -> float:
    total = sum(units)
    return max(units) * len(units) / total if total else 1.0
