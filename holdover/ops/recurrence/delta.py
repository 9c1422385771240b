"""What GDN and KDA share: normalised keys and queries, and one step of the gated delta rule."""

from __future__ import annotations

import torch
from torch import Tensor

EPS = 1e-6


def l2_normalise(x: Tensor, scale: float = 1.0) -> Tensor:
    """``scale * x / sqrt(|x|^2 + 1e-6)`` over the last axis, in fp32."""
    x = x.float()
    inverse: Tensor = torch.linalg.vecdot(x, x).add_(EPS).rsqrt_()
    return x * (inverse if scale == 1.0 else inverse.mul_(scale)).unsqueeze(-1)


def step(pool: Tensor, slots: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """One token of the gated delta rule.

    Args:
        pool: ``[S, H, d_k, d_v]`` fp32, updated in place at ``slots``.
        slots: ``[B]`` int64, distinct.
        q: raw ``[B, Hk, d_k]``.
        k: raw ``[B, Hk, d_k]``.
        v: ``[B, H, d_v]``.
        decay: factor, not its log, in fp32: ``[B, H, 1]``, or ``[B, H, d_k]`` per key channel.
        beta: ``[B, H]``.

    Returns:
        ``[B, H, d_v]`` in q's dtype.
    """
    batch, heads, d_v = v.shape
    q_hat = l2_normalise(q, q.shape[-1] ** -0.5)
    k_hat = l2_normalise(k)
    both = torch.stack([k_hat, q_hat], dim=2)  # [B, Hk, 2, d_k]
    if heads != k.shape[1]:
        both = both.repeat_interleave(heads // k.shape[1], dim=1)
    both = both.flatten(0, 1)  # [B * H, 2, d_k]
    state = pool.index_select(0, slots).flatten(0, 1)  # [B * H, d_k, d_v]
    state.mul_(decay.reshape(batch * heads, -1, 1))
    predicted, read = torch.bmm(both, state).unbind(1)  # [B * H, d_v]
    update = (v.flatten(0, 1) - predicted).mul_(beta.reshape(-1, 1))
    state.baddbmm_(both[:, 0].unsqueeze(2), update.unsqueeze(1))
    pool.index_copy_(0, slots, state.view(batch, heads, -1, d_v))
    overlap = torch.linalg.vecdot(both[:, 0], both[:, 1]).unsqueeze(1)
    return torch.addcmul(read, update, overlap).view(batch, heads, d_v).to(q.dtype)
