"""Linear layers of Transformers' models on Holdover's product, which is faster for few rows on a CPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from holdover.ops.linear import linear


def install(model: nn.Module) -> None:
    """Replace the forward of every plain linear layer in fp32 on a CPU; others stay as they are.

    Args:
        model: the loaded model, in its final dtype and place.
    """
    for found in model.modules():
        if type(found) is nn.Linear and found.weight.is_cpu and found.weight.dtype is torch.float32:
            module: Any = found
            module.forward = partial(_forward, module)


def _forward(module: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return linear(x, module.weight, module.bias)
