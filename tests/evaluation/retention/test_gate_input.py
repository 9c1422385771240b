"""Fitting a_s, and what static horizons get wrong at a cutoff."""

from __future__ import annotations

import math

import pytest
import torch

from holdover.arch.architecture import Gate
from holdover.evaluation.retention.empirical import Observation
from holdover.evaluation.retention.gate_input import cutoff_errors, fit_gate_input, median_error
from holdover.evaluation.retention.validate import agreement, calibrate_gate_input
from holdover.retention.horizon import static_horizons
from tests.engine.harness import host_of

GATE = Gate("softplus")


def static(gate_input: float) -> list[torch.Tensor]:
    layers = host_of("kimi_linear").layout.state.layers
    generator = torch.Generator().manual_seed(0)
    return [
        static_horizons(
            torch.randn(layer.heads, generator=generator),
            torch.randn(layer.units, generator=generator) - 3,
            layer,
            GATE,
            gate_input=gate_input,
        )
        for layer in layers
    ]


def noisy(gate_input: float, seed: int, spread: float = 0.3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [x * (spread * torch.randn(len(x), generator=generator)).exp() for x in static(gate_input)]


@pytest.mark.parametrize("planted", [-0.3, 0.8, 2.37, -4.05])
def test_a_planted_gate_input_is_found(planted: float) -> None:
    fit = fit_gate_input(static, [static(planted)] * 2)
    assert (fit.gate_input, fit.error) == (planted, 0)
    found = fit_gate_input(static, [noisy(planted, seed) for seed in range(4)])
    assert found.gate_input == pytest.approx(planted, abs=0.1)
    # the median of |0.3 x| for a standard normal x
    assert found.error == pytest.approx(0.3 * 0.6745, rel=0.15)


def test_it_is_judged_on_the_other_prefixes() -> None:
    def seen(gate_input: float, seed: int) -> Observation:
        return Observation(tuple(noisy(gate_input, seed)), tuple(static(0.0)))

    # even places say 1, odd places say 2
    observations = [seen(1.0 + i % 2, i) for i in range(6)]
    found = calibrate_gate_input(static, 2.0, observations, [16])
    assert found is not None
    assert found.fit.gate_input == pytest.approx(1.0, abs=0.15)
    assert found.used.error == pytest.approx(0.2, abs=0.05)
    assert found.fitted.error > 2 * found.used.error
    assert found.fitted.agreement.horizons is not None
    # 3 odd prefixes of each layer
    assert found.fitted.agreement.horizons.count == 3 * len(static(0.0))
    assert calibrate_gate_input(static, 2.0, observations[:1], [16]) is None


def test_units_of_different_layers_are_not_pooled() -> None:
    # each layer in perfect order, all of them together in none
    horizons = [torch.tensor([1.0, 2.0]), torch.tensor([100.0, 200.0])]
    seen = Observation(
        (torch.tensor([10.0, 20.0]), torch.tensor([1.0, 2.0])), (torch.ones(2), torch.tensor([2.0, 1.0]))
    )
    found = agreement(horizons, [seen])
    assert found.horizons is not None
    assert (found.horizons.median, found.horizons.count) == (pytest.approx(1), 2)
    # the layer whose magnitudes are all the same has no order
    assert found.magnitudes is not None
    assert (found.magnitudes.median, found.magnitudes.count) == (pytest.approx(-1), 1)


def test_errors_at_a_cutoff() -> None:
    guess = [torch.tensor([8.0, 16.0, 32.0, 64.0])]
    seen = [[torch.tensor([20.0, 20.0, 20.0, 20.0])], [torch.tensor([8.0, 8.0, 8.0, 1000.0])]]
    (at,) = cutoff_errors(guess, seen, [16])
    # exceeding 16: guessed no no yes yes; seen yes yes yes yes, then no no no yes
    assert at.wrong == 3 / 8
    # within 8..32: four of 20, three of 8; errors ln of 2.5 1.25 1.6 3.2 and 1 2 4
    assert at.near == 7
    assert at.near_error == pytest.approx(math.log(2))
    assert cutoff_errors(guess, seen, [10**6])[0].near_error is None
    assert median_error(guess, [guess]) == 0
