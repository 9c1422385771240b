"""Gated DeltaNet on a pool of states: one token or a sequence, in fp32 whatever the inputs' dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from holdover.ops.recurrence import chunk, delta


def step(pool: Tensor, slots: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """Advance the states at ``slots`` by one token, in place; no other slot changes.

    Args:
        pool: ``[S, H, d_k, d_v]`` fp32; may be strided over S.
        slots: ``[B]`` int64, distinct.
        q: raw queries ``[B, Hk, d_k]``; a key head serves ``H // Hk`` consecutive value heads.
        k: raw keys ``[B, Hk, d_k]``.
        v: values ``[B, H, d_v]``.
        log_decay: ``[B, H]``.
        beta: ``[B, H]``.

    Returns:
        ``[B, H, d_v]`` in q's dtype.
    """
    return delta.step(pool, slots, q, k, v, log_decay.float().exp().unsqueeze(-1), beta)


def sequence(pool: Tensor, slots: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """Advance the states at ``slots`` by T tokens, in place; no other slot changes.

    Args:
        pool: ``[S, H, d_k, d_v]`` fp32; may be strided over S.
        slots: ``[B]`` int64, distinct.
        q: raw queries ``[B, T, Hk, d_k]``.
        k: raw keys ``[B, T, Hk, d_k]``.
        v: values ``[B, T, H, d_v]``.
        log_decay: ``[B, T, H]``.
        beta: ``[B, T, H]``.

    Returns:
        ``[B, T, H, d_v]`` in q's dtype.
    """
    if q.shape[1] == 1:
        return step(pool, slots, q[:, 0], k[:, 0], v[:, 0], log_decay[:, 0], beta[:, 0]).unsqueeze(1)
    return chunk.advance(_advance, pool, slots, [q, k, v, log_decay, beta], torch.empty_like(v, dtype=q.dtype))


def _advance(state: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """Chunks ``[N, B, H or Hk, C, ...]`` through ``state [B, H, d_k, d_v]``; returns ``[N, B, H, C, d_v]``."""
    chunks, batch, heads, size, d_v = v.shape
    key_heads, d_k = k.shape[2], k.shape[4]
    grouped = (chunks * batch * key_heads, heads // key_heads)  # what a key head's products are repeated over
    flat = (chunks, batch * heads)

    total = log_decay.clamp_(min=chunk.FLOOR).cumsum(-1).view(*grouped, size)
    pairs = chunk.pairwise_decay(total)  # [G, r, C, C]
    since_start = total.exp()
    until_end = (total[..., -1:] - total).exp_()
    beta = beta.view(*grouped, size)

    q = q.mul_(delta.inverse_norm(q).mul_(d_k**-0.5)).view(-1, size, d_k)
    k = k.mul_(delta.inverse_norm(k)).view(-1, size, d_k)
    lower = (torch.bmm(k, k.mT).unsqueeze(1) * pairs).mul_(beta.unsqueeze(-1))
    mix = pairs.mul_(torch.bmm(q, k.mT).unsqueeze(1))

    inverse = chunk.unit_lower_inverse(lower.view(-1, size, size)).view_as(lower)
    inverse.mul_(beta.unsqueeze(-2))
    updates = torch.bmm(inverse.view(-1, size, size), v.view(-1, size, d_v))
    inverse.mul_(since_start.unsqueeze(-2))
    correction = torch.bmm(inverse.view(-1, grouped[1] * size, size), k)  # [G, r * C, d_k]

    out = chunk.scan(
        state.view(batch * heads, d_k, d_v),
        since_start[..., -1].reshape(*flat, 1, 1),
        (q.unsqueeze(1) * since_start.unsqueeze(-1)).view(*flat, size, d_k),
        (k.unsqueeze(1) * until_end.unsqueeze(-1)).view(*flat, size, d_k),
        mix.view(*flat, size, size),
        updates.view(*flat, size, d_v),
        correction.view(*flat, size, d_k),
    )
    return out.view(chunks, batch, heads, size, d_v)
