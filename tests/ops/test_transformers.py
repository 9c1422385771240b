"""Transformers' own functions as an independent twin."""

from __future__ import annotations

import pytest
import torch

from holdover.ops.conv import torch as conv
from tests.helpers import assert_close
from tests.ops.families import CASES, Case, painted_pool

SLOTS = torch.tensor([4, 1])
RTOL = 2e-5


def twin(case: Case, state: torch.Tensor, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and final state by Transformers' chunk function."""
    if case.name.startswith("mamba2"):
        module = pytest.importorskip("transformers.models.granitemoehybrid.modeling_granitemoehybrid")
        x, dt, a, b, c, d = arguments
        out, final = module.mamba2_chunk_scan(
            x, dt, a, b, c, chunk_size=16, D=d, initial_states=state.mT, return_final_states=True
        )
        return out, final.mT
    if case.name == "kda":
        module = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
        function = module.chunk_kimi_delta_attention
    else:
        module = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
        function = module.torch_chunk_gated_delta_rule
    q, k, v, g, beta = arguments
    out, final = function(
        q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    return out, final


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("tokens", [1, 5, 64, 130])
def test_recurrence(case: Case, tokens: int) -> None:
    pool, arguments = painted_pool(case), case.arguments(2, tokens)
    out_ref, state_ref = twin(case, pool[SLOTS], arguments)
    out = case.ops.sequence(pool, SLOTS, *arguments)
    assert_close("outputs", out, out_ref, RTOL)
    assert_close("state", pool[SLOTS], state_ref, RTOL)


@pytest.mark.parametrize("tokens", [1, 2, 9])
@pytest.mark.parametrize("bias", [True, False])
def test_conv(tokens: int, bias: bool) -> None:
    module = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    pool = torch.randn(5, 3, 10)
    x, weight, offset = torch.randn(2, tokens, 10), torch.randn(10, 4), torch.randn(10) if bias else None
    history = pool[SLOTS].mT.contiguous()  # the twin keeps channels first and updates in place
    expected = module.causal_conv1d_update(x.mT, history, weight, offset, "silu").mT
    out = conv.sequence(pool, SLOTS, x, weight, offset, "silu")
    assert_close("outputs", out, expected, 1e-6)
    assert torch.equal(pool[SLOTS], history.mT)
