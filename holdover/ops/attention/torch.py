"""Attention over one row per token, for sequences of unequal length; reads each sequence's own rows only."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def paged_attention(
    q: Tensor, keys: Tensor, values: Tensor, rows: Sequence[Tensor], scale: float, window: int | None = None
) -> Tensor:
    """Causal attention of the T newest tokens of each sequence over all of its tokens.

    Args:
        q: ``[B, T, Hq, D]``, rotated already.
        keys: plane of one row per token ``[R, Hkv, D]``.
        values: plane ``[R, Hkv, Dv]``.
        rows: per sequence the row of every token so far in order, the T new ones last; int64.
        scale: factor on the scores.
        window: tokens that a query sees, itself included, or None for all.

    Returns:
        ``[B, T, Hq, Dv]`` in q's dtype; a KV head serves ``Hq // Hkv`` consecutive query heads.
    """
    out = torch.empty(*q.shape[:3], values.shape[-1], dtype=q.dtype, device=q.device)
    tokens = q.shape[1]
    for i, sequence in enumerate(rows):
        if window is not None:
            sequence = sequence[-(tokens + window - 1) :]
        k, v = keys.index_select(0, sequence), values.index_select(0, sequence)  # [L, Hkv, D]
        out[i] = _attend(q[i], k, v, scale, window)
    return out


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
    """One sequence: ``q [T, Hq, D]`` over ``k [L, Hkv, D]``, ``v [L, Hkv, Dv]``; returns ``[T, Hq, Dv]``."""
    tokens, length = len(q), len(k)
    mask = _mask(tokens, length, window, q.device)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k.to(q.dtype), v.to(q.dtype)))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)[0].transpose(0, 1)


def _mask(tokens: int, length: int, window: int | None, device: torch.device) -> Tensor | None:
    """True where query t of the ``tokens`` newest sees token j of ``length``; None if every query sees all."""
    if tokens == 1 and (window is None or length <= window):
        return None
    visible = torch.ones(tokens, length, dtype=torch.bool, device=device).tril_(length - tokens)
    return visible if window is None else visible.triu_(length - tokens - window + 1)


def paged_latent_attention(
    q_nope: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    rope: Tensor,
    rows: Sequence[Tensor],
    w_k: Tensor,
    w_v: Tensor,
    scale: float,
) -> Tensor:
    """Multi-head latent attention with the key and value expansions absorbed into query and output.

    Args:
        q_nope: ``[B, T, H, d_n]``.
        q_rope: ``[B, T, H, d_r]``, rotated already if the model rotates.
        latent: plane of normalised latents ``[R, 1, c]``.
        rope: plane of the key part that all heads share ``[R, 1, d_r]``.
        rows: per sequence the row of every token so far in order, the T new ones last; int64.
        w_k: expansion of a latent to keys ``[H, d_n, c]``.
        w_v: expansion of a latent to values ``[H, d_v, c]``.
        scale: factor on the scores.

    Returns:
        ``[B, T, H, d_v]`` in q_nope's dtype.
    """
    out = torch.empty(*q_nope.shape[:3], w_v.shape[1], dtype=q_nope.dtype, device=q_nope.device)
    absorbed = torch.einsum("bthd,hdc->bthc", q_nope, w_k)
    q = torch.cat([absorbed, q_rope], dim=-1)
    for i, sequence in enumerate(rows):
        past = latent.index_select(0, sequence)  # [L, 1, c]
        k = torch.cat([past, rope.index_select(0, sequence)], dim=-1)
        mixed = _attend(q[i], k, past, scale, None)  # [T, H, c]
        out[i] = torch.einsum("thc,hdc->thd", mixed, w_v)
    return out
