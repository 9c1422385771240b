"""Causal depthwise convolution whose last W-1 inputs live in a pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from holdover.ops.slots import in_place

# elements worked on at once: the passes over them then find them in the cache
TILE = 1 << 16


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
    check(activation)
    taps = weight.mT.float().contiguous()  # [W, C]
    out = torch.empty_like(x)
    for part, history in in_place(pool, slots):
        inputs = torch.cat([history.to(x.dtype), x[part].unsqueeze(1)], dim=1)  # [b, W, C]
        history.copy_(inputs[:, 1:])
        out[part] = finish((inputs * taps).sum(1), bias, activation)
    return out


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
    check(activation)
    taps = weight.mT.float().contiguous().unbind()  # W of [C]
    past = len(taps) - 1
    out = torch.empty_like(x)
    for part, history in in_place(pool, slots):
        # only the first outputs see the history: the rest read x where it lies
        head = torch.cat([history.to(x.dtype), x[part, :past]], dim=1)
        _convolve(head, taps, out[part, :past], bias, activation)
        _convolve(x[part], taps, out[part, past:], bias, activation)
        latest = x[part] if x.shape[1] >= past else head
        history.copy_(latest[:, latest.shape[1] - past :])
    return out


def _convolve(inputs: Tensor, taps: Sequence[Tensor], out: Tensor, bias: Tensor | None, activation: str | None) -> None:
    """Outputs ``out [b, n, C]`` of ``inputs [b, n + W - 1, C]``."""
    batch, tokens, channels = out.shape
    tile = max(1, TILE // (batch * channels))
    for start in range(0, tokens, tile):
        length = min(tile, tokens - start)
        window = inputs[:, start : start + length + len(taps) - 1].float()
        y = window[:, :length] * taps[0]
        for offset, tap in enumerate(taps[1:], start=1):
            y.addcmul_(window[:, offset : offset + length], tap)
        out[:, start : start + length] = finish(y, bias, activation)


def check(activation: str | None) -> None:
    """Raise ValueError unless ``activation`` is one that `finish` knows."""
    if activation not in ("silu", None):
        raise ValueError(f"activation is {activation!r}, want 'silu' or None")


def finish(y: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """Bias ``[C]`` and activation on fp32 ``y [..., C]``, in place."""
    if bias is not None:
        y += bias
    return y if activation is None else F.silu(y, inplace=True)
