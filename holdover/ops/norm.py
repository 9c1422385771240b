"""RMS norms and gates in few passes: small batches pay for calls, long ones for memory traffic."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from holdover.ops.forms import runs_native
from holdover.ops.native import elementwise
from holdover.ops.native.elementwise import Activation

_NATIVE = {F.silu: Activation.SILU, torch.sigmoid: Activation.SIGMOID}


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis, computed in fp32.

    Args:
        x: ``[..., d]``.
        weight: fp32 ``[d]``.
        eps: added to the mean square.

    Returns:
        fp32 ``[..., d]``.
    """
    if runs_native(x):
        return elementwise.norm(x, weight, eps)
    x = x.float()
    if x.is_cuda:
        # one launch
        return F.rms_norm(x, x.shape[-1:], weight, eps)
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
    if runs_native(x) and activation in _NATIVE:
        return elementwise.norm(x, weight, eps, gate, _NATIVE[activation]).to(x.dtype)
    return rms_norm(x, weight.float(), eps).mul_(activation(gate.float())).to(x.dtype)


def silu_product(gate: Tensor, x: Tensor) -> Tensor:
    """``silu(gate) * x`` of tensors ``[..., d]``, in their dtype."""
    return elementwise.silu_product(gate, x) if runs_native(x) else F.silu(gate) * x
