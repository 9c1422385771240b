import math

import pytest
import torch

from holdover.arch.registry import layout_from_config
from holdover.retention import RetentionPlan
from holdover.retention.summary import head_fractions, one_step_decay, summarise
from tests.arch.fixtures import published
from tests.retention.test_plan import LAYOUT, plan


def test_counts_by_hand() -> None:
    # layer 0: heads, one of four kept; layer 2: two heads of two channels, one kept in each
    got = summarise(plan(), LAYOUT)
    assert (got.w_max, got.units, got.retained, got.r_max) == (16, 8, 3, 2)
    assert (got.pairs, got.mixed, got.whole) == (6, 2, 1)
    assert got.layer_means == (0.25, 0.5)
    assert (got.retained_fraction, got.r_mean, got.mixed_pairs) == (3 / 8, 1.5, 2 / 6)
    assert got.layer_range == (0.25, 0.5)


@pytest.mark.parametrize(("w_max", "whole", "kept"), [(4, 6, 8), (10_000, 0, 0)])
def test_everything_and_nothing(w_max: int, whole: int, kept: int) -> None:
    got = summarise(plan(w_max, ([5.0] * 4, [5.0] * 4)), LAYOUT)
    assert (got.mixed, got.whole, got.retained) == (0, whole, kept)


def test_figure_6() -> None:
    """The counts of Figure 6 on a mask with as many heads of each kind: 389 of 640 mixed, 215 empty, 36 whole."""
    layout = layout_from_config(published("kimi-linear-48b-a3b")).state
    kinds = torch.tensor([1] * 389 + [0] * 215 + [128] * 36)[torch.randperm(640)].view(20, 32)
    # the first channels of each head outlast the cutoff
    horizons = [torch.where(torch.arange(128) < kept[:, None], 99.0, 3.0).flatten() for kept in kinds]
    facts = {"model": "m", "layout": layout, "gate": "softplus", "gate_input": -0.3, "epsilon": 1e-3}
    got = summarise(RetentionPlan.select(horizons, 16, **facts), layout)
    assert (got.pairs, got.mixed, got.whole) == (640, 389, 36)
    assert round(got.mixed_pairs, 3) == 0.608
    assert got.retained == 389 + 36 * 128


def test_head_fractions() -> None:
    fractions = head_fractions(torch.tensor([True, False, True, True]), LAYOUT.layers[1])
    assert fractions.tolist() == [0.5, 1.0]


def test_typical_layer_is_closest_to_the_median() -> None:
    layer = LAYOUT.layers[0]
    layout = type(LAYOUT)((layer,) * 5)
    horizons = [torch.tensor([9.0] * kept + [1.0] * (4 - kept)) for kept in (4, 0, 3, 1, 2)]
    facts = {"model": "m", "layout": layout, "gate": "softplus", "gate_input": -0.3, "epsilon": 1e-3}
    assert summarise(RetentionPlan.select(horizons, 4, **facts), layout).typical_layer == 4


def test_one_step_decay_undoes_the_horizon() -> None:
    decay = torch.tensor([0.001, 0.5, 0.999], dtype=torch.float64)
    horizons = math.log(1e-3) / decay.log()
    assert torch.allclose(one_step_decay(horizons, 1e-3), decay, rtol=1e-12)
    assert float(one_step_decay(torch.zeros(1), 1e-3)) == 0
