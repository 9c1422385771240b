"""Gated DeltaNet, token by token: the definition that every other form of it is tested against."""

from __future__ import annotations

import torch
from torch import Tensor

EPS = 1e-6


def l2_normalise(x: Tensor) -> Tensor:
    """``x / sqrt(|x|^2 + 1e-6)`` over the last axis."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)


def recurrence(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Advance ``state`` over T tokens in its own dtype; the input is left as it is.

    Per value head, with l2-normalised k and q and q scaled by ``d_k ** -0.5`` (Yang et al., Gated Delta Networks)::

        S_t = exp(g_t) S_{t-1} + k_t (beta_t (v_t - k_t^T exp(g_t) S_{t-1}))
        o_t = q_t^T S_t

    Args:
        state: ``[B, H, d_k, d_v]``.
        q: raw queries ``[B, T, Hk, d_k]``; a key head serves ``H // Hk`` consecutive value heads.
        k: raw keys ``[B, T, Hk, d_k]``.
        v: values ``[B, T, H, d_v]``.
        log_decay: ``[B, T, H]``, or ``[B, T, H, d_k]`` for a decay per key channel.
        beta: write strengths ``[B, T, H]``.

    Returns:
        Outputs ``[B, T, H, d_v]`` and the final state.
    """
    repeats = v.shape[2] // k.shape[2]
    q = l2_normalise(q.to(state.dtype)).repeat_interleave(repeats, dim=2) * q.shape[-1] ** -0.5
    k = l2_normalise(k.to(state.dtype)).repeat_interleave(repeats, dim=2)
    v, beta = v.to(state.dtype), beta.to(state.dtype)
    decay = log_decay.to(state.dtype).exp()
    decay = decay if decay.dim() == 4 else decay[..., None]

    outputs = []
    for t in range(v.shape[1]):
        state = state * decay[:, t, :, :, None]
        predicted = torch.einsum("bhk,bhkv->bhv", k[:, t], state)
        update = beta[:, t, :, None] * (v[:, t] - predicted)
        state = state + k[:, t, :, :, None] * update[:, :, None, :]
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(outputs, dim=1), state
