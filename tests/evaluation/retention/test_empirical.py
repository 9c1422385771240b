"""Observed horizons and magnitudes (Eq. 4 and 5) against direct computation on unmodified modules."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from holdover.errors import ConfigError
from holdover.evaluation.retention.empirical import empirical_horizons, observe, unit_norms
from holdover.evaluation.retention.session import Session
from holdover.retention.horizon import LONGEST_HORIZON
from tests.arch.table import ARCHITECTURES, MAX_POSITIONS, build_model
from tests.engine.harness import RTOL, host_of, prompt_of
from tests.helpers import assert_close

EPSILON = 1e-3
TOKENS = prompt_of(40)


def test_horizons_of_gdn_from_the_gates_of_the_unmodified_model() -> None:
    seen = observe(Session(host_of("qwen3_5"), 64), TOKENS, EPSILON)
    model, gates = build_model("qwen3_5"), {}
    for module in model.modules():
        if hasattr(module, "in_proj_a"):

            def keep(_, __, a: torch.Tensor, module=module) -> None:
                log_decay = -module.A_log.exp() * F.softplus(a + module.dt_bias)
                gates[module.layer_idx] = log_decay[0]

            module.in_proj_a.register_forward_hook(keep)
    with torch.inference_mode():
        model(input_ids=torch.tensor([TOKENS]), use_cache=False)
    assert len(gates) == len(seen.horizons) == 4
    for layer, horizons in zip(sorted(gates), seen.horizons, strict=True):
        wanted = [math.log(EPSILON) / float(gates[layer][:, unit].mean()) for unit in range(4)]
        assert_close(f"layer {layer}", horizons, torch.tensor(wanted), RTOL)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_one_number_a_unit_whatever_the_chunks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_of(name)
    whole = observe(Session(host, 64), TOKENS, EPSILON)
    monkeypatch.setattr("holdover.evaluation.retention.session._CHUNK", 7)
    session = Session(host, 64)
    # what ran before does not matter
    observe(session, prompt_of(9, seed=1), EPSILON)
    chunked = observe(session, TOKENS, EPSILON)
    units = [layer.units for layer in host.layout.state.layers]
    for field in ("horizons", "magnitudes"):
        assert [len(x) for x in getattr(whole, field)] == units
        for got, ref in zip(getattr(chunked, field), getattr(whole, field), strict=True):
            assert_close(field, got, ref, RTOL)
    assert all((horizons > 0).all() for horizons in whole.horizons)


@pytest.mark.parametrize("name", ["qwen3_5", "kimi_linear", "granite_hybrid"])
def test_magnitudes_unit_by_unit(name: str) -> None:
    session = Session(host_of(name), 64)
    seen = observe(session, TOKENS, EPSILON)
    for layer, magnitudes in zip(host_of(name).layout.state.layers, seen.magnitudes, strict=True):
        state = session.native.pool.temporal(layer.index)[session.slot]
        by_channel = layer.units == layer.heads * layer.d_k
        rows = [row for head in state for row in (head if by_channel else [head])]
        wanted = torch.stack([row.square().sum().sqrt() for row in rows])
        assert_close("magnitudes", magnitudes, wanted, RTOL)
        assert torch.equal(magnitudes, unit_norms(state, layer.units))


def test_a_unit_that_never_decays_has_the_longest_horizon() -> None:
    means = torch.tensor([-0.0, 0.0, -1e-30, math.log(EPSILON)])
    assert empirical_horizons(means, EPSILON).tolist() == [*[LONGEST_HORIZON] * 3, pytest.approx(1)]


def test_a_prefix_longer_than_the_context_is_refused() -> None:
    with pytest.raises(ConfigError, match="do not fit into the model's context"):
        Session(host_of("qwen3_5"), MAX_POSITIONS + 1)
