"""Layers with a log against vLLM's own, and against the recurrence as it is defined."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from vllm.config import CacheConfig, ModelConfig, VllmConfig

from holdover.integrations.vllm.decode.gdn import DeferredOlmo, DeferredQwen
from holdover.integrations.vllm.decode.kda import DeferredKimi
from holdover.ops.conv.naive import convolution
from holdover.ops.recurrence.gdn.naive import recurrence
from holdover.weights.bundled import bundled_path
from tests.vllm.layers import LayerRun, Row

BLOCK = 32
SHAPES = {"hidden_size": 48, "hidden_act": "silu", "rms_norm_eps": 1e-6}
LINEAR = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_conv_kernel_dim": 4},
    **{"linear_key_head_dim": 16, "linear_value_head_dim": 32},
}
QWEN = SimpleNamespace(**SHAPES, **LINEAR)
OLMO = SimpleNamespace(**SHAPES, **LINEAR | {"linear_num_key_heads": 4}, linear_allow_neg_eigval=True)
KIMI = {"head_dim": 16, "num_heads": 4, "short_conv_kernel_size": 4}


def vllm_config(interval: int | None, dtype: str) -> VllmConfig:
    source = bundled_path("tiny-gdn")
    assert source is not None
    return VllmConfig(
        model_config=ModelConfig(model=str(source), dtype=dtype),
        cache_config=CacheConfig(mamba_cache_mode="align", mamba_ssm_cache_dtype="float32"),
        additional_config={} if interval is None else {"holdover": {"decode": {"interval": interval}}},
    )


# prefills, decodes across block boundaries, and both in one batch
STEPS = [
    [Row(0, 27)],
    *([Row(at, 1)] for at in range(27, 30)),
    [Row(30, 1), Row(0, 40, 1)],
    [Row(31, 1), Row(40, 9, 1)],
    *([Row(at, 1), Row(at + 17, 1, 1)] for at in range(32, 80)),
]


@pytest.mark.parametrize("interval", [2, 5, 8, 16])
def test_qwen_is_vllms_own_layer(interval: int) -> None:
    """To what vLLM's kernel for CPUs is exact to; that is less than fp32."""
    stock, deferred = (_tiny(interval) for interval in (None, interval))
    noise = torch.Generator().manual_seed(interval)
    for rows in STEPS:
        hidden = torch.randn(sum(row.scheduled for row in rows), 192, generator=noise).bfloat16()
        want, got = (run.forward(hidden, rows) for run in (stock, deferred))
        torch.testing.assert_close(got.float(), want.float(), rtol=2e-2, atol=2e-2)
        for row in rows:
            # canonical where vLLM caches a state, and where a prefill left it
            if row.end % BLOCK == 0 or row.scheduled > 1:
                (conv, temporal), (conv_wanted, wanted) = deferred.states(row), stock.states(row)
                assert torch.equal(conv, conv_wanted), row
                assert (temporal - wanted).norm() < 5e-3 * wanted.norm(), row
    decoded = sum(row.scheduled == 1 for rows in STEPS for row in rows)
    counts = deferred.layer.builder.group_cursor.counts
    assert counts[0] == decoded
    assert decoded // interval <= counts[1] <= decoded / interval + 8
    assert stock.layer.page is None


@pytest.mark.parametrize("interval", [2, 8, 16])
@pytest.mark.parametrize("family", ["qwen", "olmo", "kimi", "kimi-bounded"])
def test_decode_is_the_recurrence_as_defined(family: str, interval: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # vLLM's layer of OLMo-Hybrid wants Triton even to be built
    monkeypatch.setattr(
        "vllm.model_executor.layers.mamba.gdn.olmo_gdn_linear_attn.set_triton_allocator", lambda _: None
    )
    run, noise = _run(family, interval), torch.Generator().manual_seed(interval)
    states = []
    for row in (Row(BLOCK, 1), Row(2 * BLOCK, 1, 1)):
        # as a cached prefix, or one that was loaded, lies there: two states, and poison behind them
        page = row.block(row.computed, BLOCK)
        for tensor in run.layer.kv_cache:
            tensor[page] = torch.randn(tensor[page].shape, generator=noise)
        states.append((run.layer.kv_cache[0][page].double(), run.layer._base[page].double()))
    for at in range(45):
        rows = [Row(BLOCK + at, 1), Row(2 * BLOCK + at, 1, 1)]
        given = {name: torch.randn(2, size, generator=noise) for name, size in _sizes(run.layer).items()}
        run.migrate(rows)
        with run.step(rows), torch.no_grad():
            got = _decode(run.layer, given)
        for number, row in enumerate(rows):
            mine = {name: x[number].double() for name, x in given.items()}
            want, states[number] = _defined(run.layer, mine, *states[number])
            assert (got[number] - want).norm() < 1e-4 * want.norm(), row
            if row.end % BLOCK == 0:
                page = row.block(row.end, BLOCK)
                assert torch.equal(run.layer.kv_cache[0][page], states[number][0].float())
                wanted = states[number][1]
                assert (run.layer._base[page] - wanted).norm() < 1e-4 * wanted.norm(), row


@pytest.mark.parametrize("interval", [2, 8, 16])
@pytest.mark.parametrize("family", ["qwen", "kimi"])
def test_a_state_comes_and_goes_at_any_depth(family: str, interval: int) -> None:
    run, noise = _run(family, interval), torch.Generator().manual_seed(interval)
    rows, states = [Row(BLOCK + 3, 1), Row(2 * BLOCK + 13, 1, 1)], []
    for row in rows:
        # as the tier brings it: two states, and poison behind them where a log would be
        page = row.block(row.computed, BLOCK)
        for tensor in run.layer.kv_cache:
            tensor[page] = torch.randn(tensor[page].shape, generator=noise)
        run.layer.arrive(page, row.computed)
        states.append((run.layer.kv_cache[0][page].double(), run.layer._base[page].double()))
    for _ in range(9):
        given = {name: torch.randn(2, size, generator=noise) for name, size in _sizes(run.layer).items()}
        with run.step(rows), torch.no_grad():
            _decode(run.layer, given)
        for number in range(2):
            mine = {name: x[number].double() for name, x in given.items()}
            _, states[number] = _defined(run.layer, mine, *states[number])
        rows = [Row(row.end, 1, row.sequence) for row in rows]
    for row, (conv, wanted) in zip(rows, states, strict=True):
        page = row.block(row.computed, BLOCK)
        run.layer.settle(page, row.computed)
        assert torch.equal(run.layer.kv_cache[0][page], conv.float())
        assert (run.layer._base[page] - wanted).norm() < 1e-4 * wanted.norm(), row
    # 9 tokens do not end at a fold for both, so a log was folded
    assert run.layer.builder.group_cursor.counts[1] < 18


def _tiny(interval: int | None) -> LayerRun:
    config = vllm_config(interval, "bfloat16")
    return LayerRun(config, DeferredQwen, config.model_config.hf_text_config, block_size=BLOCK)


def _run(family: str, interval: int) -> LayerRun:
    config = vllm_config(interval, "float32")
    if family.startswith("kimi"):
        bound = {"gate_lower_bound": -5.0} if family.endswith("bounded") else {}
        model = SimpleNamespace(**SHAPES, linear_attn_config=KIMI | bound)
        return LayerRun(config, DeferredKimi, model, block_size=BLOCK)
    cls, model = {"qwen": (DeferredQwen, QWEN), "olmo": (DeferredOlmo, OLMO)}[family]
    return LayerRun(config, cls, model, block_size=BLOCK)


def _sizes(layer: Any) -> dict[str, int]:
    """Widths of what the layer's projections give its core."""
    log = layer.page.log
    gate = log.heads * log.d_k if isinstance(layer, DeferredKimi) else log.heads
    sizes = {"qkv": 2 * log.key_heads * log.d_k + log.heads * log.d_v, "a": gate, "b": log.heads}
    return sizes | ({"z": log.heads * log.d_v} if isinstance(layer, DeferredKimi) else {})


def _decode(layer: Any, given: dict[str, Tensor]) -> Tensor:
    log = layer.page.log
    out = torch.full((2, log.heads, log.d_v), torch.nan)
    if isinstance(layer, DeferredKimi):
        gate, z = (given[name].unflatten(1, (log.heads, log.d_k)) for name in "az")
        layer._forward(given["qkv"], gate[None], z, given["b"][None], out[None])
    else:
        layer._forward_core(given["qkv"], given["b"], given["a"], out)
    return out


def _defined(layer: Any, given: dict[str, Tensor], history: Tensor, state: Tensor) -> tuple[Tensor, Any]:
    """One token in float64, from the formulas."""
    log = layer.page.log
    a_log, bias = layer.A_log.double(), layer.dt_bias.double()
    taps = layer.conv1d.weight.flatten(1).double()
    x, history = convolution(history[None], given["qkv"][None, None], taps, None, "silu")
    keys = log.key_heads * log.d_k
    q, k, v = x.split([keys, keys, log.heads * log.d_v], dim=-1)
    q, k, v = q.unflatten(-1, (-1, log.d_k)), k.unflatten(-1, (-1, log.d_k)), v.unflatten(-1, (-1, log.d_v))
    gate, beta = given["a"] + bias, torch.sigmoid(given["b"])
    if isinstance(layer, DeferredKimi):
        gate, a_log = gate.view(log.heads, log.d_k), a_log[:, None]
    if getattr(layer, "gate_lower_bound", None) is not None:
        log_decay = layer.gate_lower_bound * torch.sigmoid(a_log.exp() * gate)
    else:
        log_decay = -a_log.exp() * torch.log1p(gate.exp())
    if isinstance(layer, DeferredOlmo):
        beta = 2 * beta
    out, state = recurrence(state[None], q, k, v, log_decay[None, None], beta[None, None])
    out = out[0, 0]
    if isinstance(layer, DeferredKimi):
        normed = F.rms_norm(out, out.shape[-1:], layer.o_norm.weight.double(), layer.o_norm.eps)
        out = normed * torch.sigmoid(given["z"].view_as(out))
    return out.detach(), (history[0].detach(), state[0].detach())
