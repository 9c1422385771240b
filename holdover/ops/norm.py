"""RMS norms in few passes: small batches pay for calls, long ones for memory traffic."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis, computed in fp32.

    Args:
        x: ``[..., d]``.
        weight: fp32 ``[d]``.
        eps: added to the mean square.

    Returns:
        fp32 ``[..., d]``.
    """
    x = x.float()
    inverse: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    inverse = inverse.square_().mul_(1 / x.shape[-1]).add_(eps).rsqrt_()
    return (x * inverse).mul_(weight)


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, activation: Callable[[Tensor], Tensor] = F.silu
) -> Tensor:
    """``rms_norm(x) * weight * activation(gate)``, computed in fp32.

    Args:
        x: ``[..., d]``.
        gate: ``[..., d]``.
        weight: ``[d]``.
        eps: added to the mean square.
        activation: of the gate.

    Returns:
        ``[..., d]`` in x's dtype.
    """
    return rms_norm(x, weight.float(), eps).mul_(activation(gate.float())).to(x.dtype)
