"""Gated MLPs of Transformers' models in two matrix products and one pass between them: for few rows, in one call."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from holdover.engine.hf.mixers.base import JoinedLinear
from holdover.ops.linear import gated_mlp

# classes whose forward is down(act(gate(x)) * up(x)) and nothing else
_SEPARATE = {
    "Qwen3_5MLP",
    "Qwen3_5MoeMLP",
    "Qwen3NextMLP",
    "OlmoHybridMLP",
    "KimiLinearMLP",
    "BailingHybridMLP",
    "BambaMLP",
}
# the same with both projections in one
_TOGETHER = {"GraniteMoeHybridMLP"}


def install(model: nn.Module) -> None:
    """Replace the forward of every MLP that is known, under SiLU and without bias; others stay as they are.

    Args:
        model: the loaded model, in its final dtype and place.
    """
    for found in model.modules():
        module: Any = found
        name = type(module).__name__
        if name in _SEPARATE and _is_plain(module.act_fn, module.gate_proj, module.up_proj, module.down_proj):
            linears = [module.gate_proj, module.up_proj]
            joined = JoinedLinear(linears, [linear.out_features for linear in linears])
            module.forward = partial(_forward, joined.weight, module.down_proj)
        elif name in _TOGETHER and _is_plain(module.activation, module.input_linear, module.output_linear):
            module.forward = partial(_forward, module.input_linear.weight.data, module.output_linear)


def _is_plain(activation: Any, *linears: nn.Linear) -> bool:
    # by name: Transformers has a class of its own
    is_silu = type(activation).__name__ in ("SiLU", "SiLUActivation")
    return is_silu and all(type(x) is nn.Linear and x.bias is None for x in linears)


def _forward(up: torch.Tensor, down: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return gated_mlp(x, up, down.weight)
