"""RMS norms of Transformers' models on Holdover's own, which makes fewer passes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from holdover.ops.norm import rms_norm

# what is added to the weight, by the class name of the module
OFFSETS = {
    "Qwen3_5RMSNorm": 1.0,
    "Qwen3_5MoeRMSNorm": 1.0,
    "Qwen3NextRMSNorm": 1.0,
    "OlmoHybridRMSNorm": 0.0,
    "KimiLinearRMSNorm": 0.0,
    "BailingHybridRMSNorm": 0.0,
    "GraniteMoeHybridRMSNorm": 0.0,
    "BambaRMSNorm": 0.0,
    "NemotronHRMSNorm": 0.0,
    "FalconH1RMSNorm": 0.0,
    "Zamba2RMSNorm": 0.0,
}


def install(model: nn.Module) -> None:
    """Replace the forward of every norm that is known; others stay as they are.

    Args:
        model: the loaded model, in its final dtype and place.
    """
    for module in model.modules():
        offset = OFFSETS.get(type(module).__name__)
        if offset is not None:
            norm: Any = module
            eps = getattr(norm, "eps", None) or norm.variance_epsilon
            norm.forward = partial(_rms_norm, norm.weight.data.float() + offset, eps)


def _rms_norm(weight: torch.Tensor, eps: float, x: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, weight, eps).to(x.dtype)
