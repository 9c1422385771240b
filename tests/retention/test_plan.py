from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdover.arch.layout import RecurrentLayer, StateLayout
from holdover.errors import PlanError
from holdover.retention import OperatingPoint, QualityGate, RetentionPlan
from holdover.retention.decay import read_decay
from holdover.weights.source import open_files

# 4 heads, and 2 heads of 2 channels: 4 units each
LAYOUT = StateLayout(
    (
        RecurrentLayer(0, "gdn", 4, 2, 8, 8, "head", 16, 4),
        RecurrentLayer(2, "kda", 2, 2, 2, 4, "channel", 16, 4),
    )
)
HORIZONS = ([1.0, 5.0, 16.0, 900.0], [16.5, 9.0, 0.0, 17.0])
POINT = OperatingPoint(16, "suffix", "int8", 0.01, 0.05, 0.1, 0.2, 1024, 1.5)
GATE = QualityGate("weights", "text", 0.1, 8, 64, POINT, (POINT, replace(POINT, refresh="none")))


def plan(w_max: int = 16, horizons: tuple[list[float], ...] = HORIZONS) -> RetentionPlan:
    tensors = [torch.tensor(layer) for layer in horizons]
    facts = {"model": "m", "layout": LAYOUT, "gate": "softplus", "gate_input": -0.3, "epsilon": 1e-3}
    return RetentionPlan.select(tensors, w_max, **facts)


def test_a_unit_is_kept_when_it_lasts_longer_than_the_cutoff() -> None:
    made = plan()
    assert [mask.tolist() for mask in made.retained] == [[False, False, False, True], [True, False, False, True]]
    assert (made.counts, made.offsets, made.units) == ((1, 2), (0, 1, 3), 8)
    assert not made.omits_nothing


def test_a_model_that_lasts_keeps_everything() -> None:
    made = plan(4, ([5.0] * 4, [4.5] * 4))
    assert made.omits_nothing
    assert made.replay_window(100) == 0


@pytest.mark.parametrize(
    ("w_max", "horizons", "message"),
    [
        (3, HORIZONS, "w_max is 3"),
        (16, HORIZONS[:1], "horizons of"),
        (16, ([1.0] * 4, [1.0] * 3), "horizons of"),
        (16, ([1.0] * 4, [float("nan")] * 4), "not a number"),
    ],
)
def test_what_no_plan_can_be_made_of(w_max: int, horizons: tuple[list[float], ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(w_max, horizons)


@pytest.mark.parametrize(
    "change",
    [
        {"retained": (torch.ones(4, dtype=torch.bool),)},
        {"retained": (torch.ones(4, dtype=torch.bool), torch.ones(3, dtype=torch.bool))},
        {"retained": (torch.ones(4), torch.ones(4))},
        {"horizons": (torch.ones(4), torch.ones(4, dtype=torch.float64))},
        {"horizons": (torch.ones(2, 2), torch.ones(4))},
    ],
)
def test_tensors_that_do_not_fit_each_other(change: dict[str, tuple[torch.Tensor, ...]]) -> None:
    with pytest.raises(PlanError, match="every unit of every layer"):
        replace(plan(), **change)


# Eq. 7 on the omitted units' longest horizon
@pytest.mark.parametrize(
    ("w_max", "longest", "prefix", "window"),
    [
        (16, 0.0, 100, 4),
        (16, 0.3, 100, 4),
        (16, 4.0, 100, 4),
        (16, 4.1, 100, 8),
        (16, 8.0, 100, 8),
        (16, 9.0, 100, 16),
        (16, 16.0, 100, 16),
        (16, 16.0, 10, 10),
        (16, 16.0, 0, 0),
        (24, 20.0, 100, 24),
        (512, 100.0, 1000, 128),
    ],
)
def test_replay_window(w_max: int, longest: float, prefix: int, window: int) -> None:
    assert plan(w_max, ([0.0, longest, 9e9, 9e9], [9e9] * 4)).replay_window(prefix) == window


@given(st.floats(0, 2.0**40), st.integers(4, 4096))
def test_a_unit_window_is_equation_7(horizon: float, w_max: int) -> None:
    power = 4
    while power < horizon:
        power *= 2
    assert plan(w_max).unit_window(horizon) == min(power, w_max)


def test_a_random_plan_replays_the_whole_window() -> None:
    # some unit that it omits outlasts the cutoff
    assert plan(16, ([900.0] * 2 + [1.0] * 2, [900.0] * 2 + [1.0] * 2)).random_like(1).replay_window(100) == 16


def test_random_plans_are_count_matched_and_reproducible() -> None:
    horizons = (torch.arange(400) * 1.0, torch.arange(300) * 1.0)
    masks = tuple(horizon > 100 for horizon in horizons)
    made = replace(plan(), horizons=horizons, retained=masks, quality=GATE)
    one, same, other = (made.random_like(seed) for seed in (1, 1, 2))
    assert one.counts == made.counts == other.counts
    assert one.digest == same.digest
    assert len({made.digest, one.digest, other.digest}) == 3
    assert (one.selection, one.quality) == ("random(1)", None)
    # drawn uniformly: about a quarter of what it keeps is among the quarter that the plan omits
    assert 0.15 < float((one.retained[0] & ~masks[0]).sum()) / one.counts[0] < 0.35


@pytest.mark.parametrize(
    "change",
    [
        {"model": "n"},
        {"layout": "other"},
        {"w_max": 17},
        {"gate": "bounded"},
        {"gate_input": -0.2},
        {"epsilon": 1e-2},
        {"selection": "random(1)"},
        {"horizons": tuple(torch.tensor(layer) + 1 for layer in HORIZONS)},
        {"retained": (torch.ones(4, dtype=torch.bool),) * 2},
    ],
    ids=lambda change: next(iter(change)),
)
def test_digest_tells_plans_apart(change: dict[str, object]) -> None:
    assert replace(plan(), **change).digest != plan().digest == plan().digest


def test_digest_is_not_of_the_quality_gate() -> None:
    assert replace(plan(), quality=GATE).digest == plan().digest


def test_fits() -> None:
    made = plan()
    made.check_fits("m", LAYOUT)
    made.check_fits("m", replace(LAYOUT, conv_dtype="float32"))
    with pytest.raises(PlanError, match="weights"):
        made.check_fits("n", LAYOUT)
    with pytest.raises(PlanError, match="layout"):
        made.check_fits("m", replace(LAYOUT, layers=LAYOUT.layers[:1]))


def test_of_a_model() -> None:
    decay = read_decay(open_files("tiny-gdn"))
    made = RetentionPlan.of(decay, 64)
    made.check_fits(decay.fingerprint, decay.layout.state)
    assert (made.gate, made.gate_input, made.epsilon) == ("softplus", -0.3, 1e-3)
    for mask, horizons in zip(made.retained, decay.horizons(-0.3, 1e-3), strict=True):
        assert torch.equal(mask, horizons > 64)
    later = RetentionPlan.of(decay, 64, gate_input=1.0, epsilon=1e-2)
    assert (later.gate_input, later.epsilon) == (1.0, 1e-2)
    assert sum(later.counts) < sum(made.counts)
