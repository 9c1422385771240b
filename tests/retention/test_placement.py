"""Placement against Figure 9 as written, and against what it promises."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from holdover.arch.layout import RecurrentLayer, StateLayout
from holdover.errors import PlanError
from holdover.retention import RetentionPlan
from holdover.retention.permutation import assign_bundles
from holdover.retention.placement import PlacementMode, balance_storage, place
from tests.retention import figure9

MODES: tuple[PlacementMode, ...] = ("off", "storage", "hybrid")


def gdn(index: int, heads: int = 8, key_heads: int = 4) -> RecurrentLayer:
    return RecurrentLayer(index, "gdn", heads, key_heads, 2, 3, "head", 4, 4)


def kda(index: int, heads: int = 8, d_k: int = 6) -> RecurrentLayer:
    return RecurrentLayer(index, "kda", heads, heads, d_k, 3, "channel", 4, 4)


def mamba2(index: int, groups: int, heads: int = 8) -> RecurrentLayer:
    return RecurrentLayer(index, "mamba2", heads, groups, 2, 3, "head", 4, 4)


def plan_for(layout: StateLayout, seed: int = 0) -> RetentionPlan:
    """Layers and heads keep very different shares."""
    generator = torch.Generator().manual_seed(seed)
    horizons = []
    for layer in layout.layers:
        slow = torch.rand(layer.heads, 1, generator=generator) * 3
        horizons.append(
            (torch.rand(layer.heads, layer.units // layer.heads, generator=generator) * slow * 64).flatten()
        )
    facts = {"gate": "softplus", "gate_input": -0.3, "epsilon": 1e-3}
    return RetentionPlan.select(horizons, 64, model="any", layout=layout, **facts)  # type: ignore[arg-type]


LAYOUTS = {
    "gdn": StateLayout(tuple(map(gdn, range(5)))),
    "kda": StateLayout(tuple(map(kda, range(5)))),
    "mamba2-groups": StateLayout(tuple(mamba2(i, groups=4) for i in range(5))),
    "mamba2-one-group": StateLayout(tuple(mamba2(i, groups=1) for i in range(5))),
    "mixed-heads": StateLayout((kda(0), kda(2, heads=4), kda(3, heads=12))),
}


@st.composite
def bundle_costs(draw: st.DrawFn) -> tuple[list[list[int]], int]:
    ranks = draw(st.integers(1, 4))
    layer = st.integers(1, 3).flatmap(
        lambda quota: st.lists(st.integers(0, 9), min_size=quota * ranks, max_size=quota * ranks)
    )
    return draw(st.lists(layer, min_size=1, max_size=3)), ranks


@given(bundle_costs())
def test_permutation_is_that_of_figure_9a(instance: tuple[list[list[int]], int]) -> None:
    costs, ranks = instance
    assert [owners.tolist() for owners in assign_bundles(costs, ranks)] == figure9.compute_permutation(costs, ranks)


@pytest.mark.parametrize(("seed", "ranks", "largest"), [(0, 2, 128), (1, 4, 128), (2, 8, 128), (3, 4, 2)])
def test_permutation_of_a_larger_model_is_that_of_figure_9a(seed: int, ranks: int, largest: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    # few heavy bundles: greedy alone leaves something to refine
    costs = (torch.rand(4, 16, generator=generator) ** 3 * largest).round().long().tolist()
    assert [owners.tolist() for owners in assign_bundles(costs, ranks)] == figure9.compute_permutation(costs, ranks)


def test_refinement_by_hand() -> None:
    """After the second layer loads are 5 and 1; the first swap that makes them 4 and 2 is of bundles 1 and 2."""
    costs = [[0, 0, 1, 1], [0, 4]]
    assert figure9.greedy(costs, 2) == [[0, 1, 0, 1], [1, 0]]
    assert [owners.tolist() for owners in assign_bundles(costs, 2)] == [[0, 0, 1, 1], [1, 0]]


def test_permutation_at_the_size_of_kimi_k3() -> None:
    """69 layers of 96 heads over 8 ranks, of which the literal form would be hours at work."""
    costs = (torch.rand(69, 96, generator=torch.Generator().manual_seed(0)) ** 4 * 128).round().long()
    owners = torch.stack(assign_bundles(costs.tolist(), 8))
    assert all(torch.equal(layer.bincount(), torch.full((8,), 12)) for layer in owners)
    loads = torch.zeros(8, dtype=torch.int64).index_add_(0, owners.flatten(), costs.flatten())
    assert int(loads.max() - loads.min()) <= 1


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_storage_is_that_of_figure_9b(computed: list[int]) -> None:
    sent = balance_storage(computed)
    # each rank's leading units stay, its last ones go out by receiver; a slot takes them in by sender
    next_unit = [count - sum(row) for count, row in zip(computed, sent, strict=True)]
    slots = [[(rank, i) for i in range(kept)] for rank, kept in enumerate(next_unit)]
    for source, target in product(range(len(computed)), repeat=2):
        slots[target] += [(source, next_unit[source] + i) for i in range(sent[source][target])]
        next_unit[source] += sent[source][target]
    assert slots == figure9.storage(computed)


@pytest.mark.parametrize(
    ("computed", "sent"),
    [
        ([18, 16], ((0, 1), (0, 0))),
        ([5, 5, 5], ((0,) * 3,) * 3),
        ([0, 0], ((0,) * 2,) * 2),
        # the larger targets go to the fuller ranks: nothing moves
        ([2, 3, 2], ((0,) * 3,) * 3),
        # 13 units: targets 4, 5 and 4
        ([0, 8, 5], ((0, 0, 0), (3, 0, 0), (1, 0, 0))),
        ([9, 1, 3], ((0, 3, 1), (0, 0, 0), (0, 0, 0))),
    ],
)
def test_storage_by_hand(computed: list[int], sent: tuple[tuple[int, ...], ...]) -> None:
    assert balance_storage(computed) == sent


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
class TestPlacement:
    def test_every_retained_unit_is_computed_once_in_local_order(self, name: str, ranks: int) -> None:
        layout = LAYOUTS[name]
        plan = plan_for(layout)
        for mode in MODES:
            placement = place(plan, layout, ranks, mode)
            assert placement.ranks == ranks
            assert (placement.mode, placement.note) == (mode, "")
            for rank in range(ranks):
                assert torch.equal(placement.units[rank], local_units(plan, layout, placement.owners, rank))
            assert torch.cat(placement.units).sort().values.equal(torch.arange(plan.offsets[-1]))

    def test_heads(self, name: str, ranks: int) -> None:
        layout = LAYOUTS[name]
        for mode in MODES:
            placement = place(plan_for(layout), layout, ranks, mode)
            for position, layer in enumerate(layout.layers):
                heads = placement.permutation(position)
                assert torch.equal(heads.sort().values, torch.arange(layer.heads))
                if mode != "hybrid" or ranks == 1:
                    assert torch.equal(heads, torch.arange(layer.heads))
                for rank, mine in enumerate(heads.view(ranks, -1)):
                    assert placement.owners[position][mine].eq(rank).all()
                    assert mine.diff().gt(0).all()
                    if layer.family == "gdn":
                        assert torch.equal(mine[0::2] + 1, mine[1::2])

    def test_widths(self, name: str, ranks: int) -> None:
        layout = LAYOUTS[name]
        plan = plan_for(layout)
        total = plan.offsets[-1]
        off, storage, hybrid = (place(plan, layout, ranks, mode) for mode in MODES)
        assert off.stored == off.computed == storage.computed
        assert (off.slot_width, off.remote_units) == (max(off.computed), 0)
        assert off.imbalance == off.compute_imbalance == pytest.approx(max(off.computed) * ranks / total)
        for balanced in (storage, hybrid):
            assert sum(balanced.computed) == sum(balanced.stored) == total
            assert balanced.slot_width == -(-total // ranks)
            assert balanced.imbalance == pytest.approx(balanced.slot_width * ranks / total)
            moved = [max(0, n - t) for n, t in zip(balanced.computed, balanced.stored, strict=True)]
            assert balanced.remote_units == sum(moved)
        assert hybrid.compute_imbalance <= storage.compute_imbalance
        assert hybrid.remote_units <= storage.remote_units


def local_units(plan: RetentionPlan, layout: StateLayout, owners: tuple[Tensor, ...], rank: int) -> Tensor:
    """Ragged numbers of what a rank packs that goes through its own heads in order."""
    found = []
    for layer, mask, owner, start in zip(layout.layers, plan.retained, owners, plan.offsets, strict=False):
        numbers = {int(unit): start + i for i, unit in enumerate(mask.nonzero())}
        width = layer.units // layer.heads
        for head in range(layer.heads):
            if owner[head] == rank:
                found += [numbers[u] for u in range(head * width, (head + 1) * width) if u in numbers]
    return torch.tensor(found, dtype=torch.int64)


def test_a_plan_that_retains_nothing() -> None:
    layout = LAYOUTS["gdn"]
    plan = plan_for(layout)
    plan = replace(plan, retained=tuple(torch.zeros_like(mask) for mask in plan.retained))
    for mode in MODES:
        placement = place(plan, layout, 4, mode)
        assert (placement.slot_width, placement.remote_units, placement.imbalance) == (0, 0, 1.0)


@pytest.mark.parametrize(
    ("layout", "ranks", "quantised", "mode", "note"),
    [
        (LAYOUTS["kda"], 4, True, "storage", "quantised"),
        (LAYOUTS["gdn"], 8, False, "storage", "8 ranks cannot share the 4 bundles of 2 heads of layer 0 equally"),
        (StateLayout((kda(0), gdn(3, 4, 1))), 4, False, "off", "differ in size"),
        (StateLayout((gdn(0), gdn(5, 8, 2))), 4, False, "storage", "2 bundles of 4 heads of layer 5"),
        (StateLayout((gdn(0, 8, 1),)), 8, False, "hybrid", ""),
        (LAYOUTS["mamba2-one-group"], 8, False, "hybrid", ""),
    ],
)
def test_what_is_not_possible_is_said(
    layout: StateLayout, ranks: int, quantised: bool, mode: PlacementMode, note: str
) -> None:
    placement = place(plan_for(layout), layout, ranks, "hybrid", quantised=quantised)
    assert placement.mode == mode
    assert note in placement.note
    assert bool(note) == bool(placement.note)


@pytest.mark.parametrize("mode", ["off", "storage"])
def test_less_than_was_asked_has_no_note_where_it_was_not_asked(mode: PlacementMode) -> None:
    assert place(plan_for(LAYOUTS["gdn"]), LAYOUTS["gdn"], 8, mode, quantised=True).note == ""


def test_refusals() -> None:
    layout = LAYOUTS["gdn"]
    for ranks in (0, 3, 16):
        with pytest.raises(PlanError, match=f"{ranks} ranks cannot share the 8 heads of layer 0"):
            place(plan_for(layout), layout, ranks, "off")
    with pytest.raises(PlanError, match="another layout"):
        place(plan_for(layout), LAYOUTS["kda"], 2, "off")
