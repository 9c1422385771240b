"""What GDN and KDA share: normalised keys and queries, and one step of the gated delta rule."""

from __future__ import annotations

import torch
from torch import Tensor

EPS = 1e-6


def inverse_norm(x: Tensor) -> Tensor:
    """``1 / sqrt(|x|^2 + 1e-6)`` over the last axis of ``x [..., d]``: ``[..., 1]``."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().add_(EPS).rsqrt_()


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
    both = torch.stack([k, q], dim=2).float()  # [B, Hk, 2, d_k]
    both = both * inverse_norm(both)
    if heads != k.shape[1]:
        both = both.repeat_interleave(heads // k.shape[1], dim=1)
    both = both.flatten(0, 1)  # [B * H, 2, d_k]
    state = pool.index_select(0, slots).flatten(0, 1)  # [B * H, d_k, d_v]
    state.mul_(decay.reshape(batch * heads, -1, 1))
    predicted, read = torch.bmm(both, state).unbind(1)  # [B * H, d_v]
    update = (v.flatten(0, 1) - predicted).mul_(beta.reshape(-1, 1))
    state.baddbmm_(both[:, 0].unsqueeze(2), update.unsqueeze(1))
    pool.index_copy_(0, slots, state.view(batch, heads, -1, d_v))
    # the read of the new state, without reading it again: q^T (S + k u^T) = q^T S + (q^T k) u^T
    overlap = torch.linalg.vecdot(both[:, 0], both[:, 1]).unsqueeze(1)
    return torch.addcmul(read, update, overlap).mul_(q.shape[-1] ** -0.5).view(batch, heads, d_v).to(q.dtype)
