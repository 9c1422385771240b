"""Mamba-2 (SSD), token by token: the definition that every other form of it is tested against."""

from __future__ import annotations

import torch
from torch import Tensor


def recurrence(
    state: Tensor, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor
) -> tuple[Tensor, Tensor]:
    """Advance ``state`` over T tokens in its own dtype; the input is left as it is.

    Per head (Dao and Gu, state space duality)::

        S_t = exp(dt_t a) S_{t-1} + (dt_t b_t) x_t^T
        y_t = c_t^T S_t + d x_t

    Args:
        state: ``[B, H, N, P]``.
        x: ``[B, T, H, P]``.
        dt: step sizes ``[B, T, H]``, already biased, softplus'ed and clamped.
        a: ``[H]``, negative.
        b: ``[B, T, G, N]``; a group serves ``H // G`` consecutive heads.
        c: ``[B, T, G, N]``.
        d: skip ``[H]``.

    Returns:
        Outputs ``[B, T, H, P]`` and the final state.
    """
    x, dt, a, b, c, d = (tensor.to(state.dtype) for tensor in (x, dt, a, b, c, d))
    repeats = x.shape[2] // b.shape[2]
    b = b.repeat_interleave(repeats, dim=2)
    c = c.repeat_interleave(repeats, dim=2)

    outputs = []
    for t in range(x.shape[1]):
        write = dt[:, t, :, None] * b[:, t]  # [B, H, N]
        state = state * (dt[:, t] * a).exp()[..., None, None] + write[..., None] * x[:, t, :, None, :]
        outputs.append(torch.einsum("bhn,bhnp->bhp", c[:, t], state) + d[:, None] * x[:, t])
    return torch.stack(outputs, dim=1), state
