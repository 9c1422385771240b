"""Causal depthwise convolution with its past inputs as state, token by token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def convolution(
    history: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> tuple[Tensor, Tensor]:
    """Outputs for T tokens and the history after them; the inputs are left as they are.

    Args:
        history: the W-1 inputs before ``x``, oldest first ``[B, W-1, C]``.
        x: ``[B, T, C]``.
        weight: ``[C, W]``; the last column weighs the current token.
        bias: ``[C]`` or None.
        activation: ``silu`` or None.

    Returns:
        Outputs ``[B, T, C]`` and the last W-1 inputs ``[B, W-1, C]``.
    """
    width = weight.shape[1]
    outputs = []
    for t in range(x.shape[1]):
        window = torch.cat([history, x[:, t : t + 1]], dim=1)  # [B, W, C]
        y = torch.einsum("bwc,cw->bc", window, weight)
        y = y if bias is None else y + bias
        outputs.append(F.silu(y) if activation == "silu" else y)
        history = window[:, window.shape[1] - width + 1 :]
    return torch.stack(outputs, dim=1), history
