"""Normalisation of a recurrent layer's readouts, gated, in one pass each instead of the many of its definition."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor


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
    normed = F.rms_norm(x.float(), weight.shape, weight.float(), eps)
    return normed.mul_(activation(gate.float())).to(x.dtype)
