"""What GDN and KDA share: normalised keys and queries, and one step of the gated delta rule."""

from __future__ import annotations

import torch
from torch import Tensor

from holdover.ops.slots import in_place

EPS = 1e-6


def inverse_norm(x: Tensor) -> Tensor:
    """``1 / sqrt(|x|^2 + 1e-6)`` over the last axis of ``x [..., d]``: ``[..., 1]``."""
    inverse: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return inverse.square_().add_(EPS).rsqrt_()


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
    out = torch.empty(v.shape, dtype=q.dtype, device=q.device)
    for part, state in in_place(pool, slots):
        out[part] = _step(state, q[part], k[part], v[part], decay[part], beta[part])
    return out


def _step(state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """`step` on ``state [B, H, d_k, d_v]`` in place; returns ``[B, H, d_v]`` in fp32."""
    batch, heads, d_v = v.shape
    key_heads, d_k = k.shape[1:]
    raw = torch.stack([k, q], dim=2).float().unsqueeze(2)  # [B, Hk, 1, 2, d_k]
    inverse = inverse_norm(raw).expand(-1, -1, heads // key_heads, -1, -1)
    both = (raw * inverse).view(batch * heads, 2, d_k)  # repeated over value heads by the product
    key, query = both.unbind(1)

    states = state.view(batch * heads, d_k, d_v)
    states.mul_(decay.reshape(batch * heads, -1, 1))
    predicted, read = torch.bmm(both, states).unbind(1)  # [B * H, d_v]
    update = (v.reshape(batch * heads, d_v) - predicted).mul_(beta.reshape(-1, 1))
    states.addcmul_(key.unsqueeze(2), update.unsqueeze(1))
    # q^T (S + k u^T) = q^T S + (q^T k) u^T: the new state is not read again
    overlap = torch.linalg.vecdot(key, query).unsqueeze(1)
    return torch.addcmul(read, update, overlap).mul_(d_k**-0.5).view(batch, heads, d_v)
