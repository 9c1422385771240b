"""Attention over one row per token, sequence by sequence and query by query, in the dtype of its inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Sequence[Tensor],
    scale: float,
    window: int | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """See `holdover.ops.attention.torch.paged_attention`."""
    batch, tokens, heads, _ = q.shape
    out = q.new_zeros(batch, tokens, heads, values.shape[-1])
    group = heads // keys.shape[1]
    for i, sequence in enumerate(rows):
        for t in range(tokens):
            end = len(sequence) - tokens + t + 1 if positions is None else int(positions[i, t]) + 1
            start = 0 if window is None else max(0, end - window)
            visible = sequence[start:end]
            k = keys[visible].repeat_interleave(group, dim=1)  # [L, Hq, D]
            v = values[visible].repeat_interleave(group, dim=1)
            weights = torch.einsum("hd,lhd->hl", q[i, t], k).mul(scale).softmax(-1)
            out[i, t] = torch.einsum("hl,lhd->hd", weights, v)
    return out


def paged_latent_attention(
    q_nope: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    rope: Tensor,
    rows: Sequence[Tensor],
    w_k: Tensor,
    w_v: Tensor,
    scale: float,
    positions: Tensor | None = None,
) -> Tensor:
    """See `holdover.ops.attention.torch.paged_latent_attention`; expands every latent to keys and values."""
    k_nope = torch.einsum("rc,hdc->rhd", latent[:, 0], w_k)
    k_rope = rope.expand(-1, w_k.shape[0], -1)
    values = torch.einsum("rc,hdc->rhd", latent[:, 0], w_v)
    q, k = torch.cat([q_nope, q_rope], dim=-1), torch.cat([k_nope, k_rope], dim=-1)
    return paged_attention(q, k, values, rows, scale, positions=positions)
