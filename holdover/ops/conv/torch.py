"""Causal depthwise convolution whose last W-1 inputs live in a pool."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def step(
    pool: Tensor, slots: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """One token; the histories at ``slots`` move on in place, no other slot changes.

    Args:
        pool: last W-1 inputs, oldest first ``[S, W-1, C]``.
        slots: ``[B]`` int64, distinct.
        x: ``[B, C]``.
        weight: ``[C, W]``; the last column weighs the current token.
        bias: ``[C]`` or None.
        activation: ``silu`` or None.

    Returns:
        ``[B, C]`` in x's dtype.
    """
    return sequence(pool, slots, x.unsqueeze(1), weight, bias, activation).squeeze(1)


def sequence(
    pool: Tensor, slots: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """T tokens; the histories at ``slots`` move on in place, no other slot changes.

    Args:
        pool: last W-1 inputs, oldest first ``[S, W-1, C]``.
        slots: ``[B]`` int64, distinct.
        x: ``[B, T, C]``.
        weight: ``[C, W]``; the last column weighs the current token.
        bias: ``[C]`` or None.
        activation: ``silu`` or None.

    Returns:
        ``[B, T, C]`` in x's dtype.
    """
    if activation not in ("silu", None):
        raise ValueError(f"activation is {activation!r}, want 'silu' or None")
    tokens = x.shape[1]
    inputs = torch.cat([pool.index_select(0, slots).to(x.dtype), x], dim=1)  # [B, W-1+T, C]
    pool.index_copy_(0, slots, inputs[:, tokens:].to(pool.dtype))
    taps = weight.float().unbind(1)
    inputs = inputs.float()
    out = inputs[:, :tokens] * taps[0] if bias is None else torch.addcmul(bias.float(), inputs[:, :tokens], taps[0])
    for offset, tap in enumerate(taps[1:], start=1):
        out.addcmul_(inputs[:, offset : offset + tokens], tap)
    return (out if activation is None else F.silu(out, inplace=True)).to(x.dtype)
