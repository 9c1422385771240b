"""Attention over one row per token, for sequences of unequal length; reads each sequence's own rows only."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from holdover.ops.forms import chosen_attention, has_triton, runs_native
from holdover.ops.native.attention import attend_one


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Sequence[Tensor],
    scale: float,
    window: int | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """Causal attention of T tokens of each sequence, the newest ones unless said otherwise, over its tokens.

    Args:
        q: ``[B, T, Hq, D]``, rotated already.
        keys: plane of one row per token ``[R, Hkv, D]``.
        values: plane ``[R, Hkv, Dv]``.
        rows: per sequence the row of every token so far in order, the T new ones last; int64.
        scale: factor on the scores.
        window: tokens that a query sees, itself included, or None for all.
        positions: where in ``rows`` each of the T tokens stands, int64 ``[B, T]``; None for the last ones.

    Returns:
        ``[B, T, Hq, Dv]`` in q's dtype; a KV head serves ``Hq // Hkv`` consecutive query heads.
    """
    if q.shape[1] == 1 and window is None and positions is None:
        if runs_native(q) and keys.dtype is values.dtype is torch.float32:
            return attend_one(q, keys, values, rows, scale)
        return _attend_one(q, keys, values, rows, scale)
    out = torch.empty(*q.shape[:3], values.shape[-1], dtype=q.dtype, device=q.device)
    reach = None if window is None or positions is not None else q.shape[1] + window - 1
    for i, sequence in enumerate(rows):
        k, v = _read((keys, values), sequence if reach is None else sequence[-reach:])
        out[i] = _attend(q[i], k, v, scale, window, None if positions is None else positions[i])
    return out


def _attend_one(q: Tensor, keys: Tensor, values: Tensor, rows: Sequence[Tensor], scale: float) -> Tensor:
    """One new token of each sequence: ``q [B, 1, Hq, D]``; returns ``[B, 1, Hq, Dv]``."""
    # one read for all sequences, cut into each one's own part: calls cost more than short sequences do
    lengths = [len(sequence) for sequence in rows]
    together = torch.cat(list(rows)) if len(rows) > 1 else rows[0]
    k, v = (plane.float().transpose(0, 1).split(lengths, dim=1) for plane in _read((keys, values), together))
    # the query heads of a KV head are its queries
    grouped = (q.float() * scale).reshape(q.shape[0], keys.shape[1], -1, q.shape[-1])  # [B, Hkv, G, D]
    out = torch.empty(*grouped.shape[:3], values.shape[-1], device=q.device)
    for one, read, ki, vi in zip(grouped.unbind(), out.unbind(), k, v, strict=True):
        weights = torch.bmm(one, ki.mT).softmax(-1)  # [Hkv, G, L]
        torch.bmm(weights, vi, out=read)
    return out.view(*q.shape[:3], -1).to(q.dtype)


def _read(planes: Sequence[Tensor], rows: Tensor) -> list[Tensor]:
    """``plane[rows]`` of each; on a CPU, rows that lie one after the other are not copied."""
    if rows.is_cuda:
        # looking at rows would wait for the device, at every layer
        return [plane.index_select(0, rows) for plane in planes]
    first, last, length = int(rows[0]), int(rows[-1]), len(rows)
    if last - first == length - 1 and torch.equal(rows, torch.arange(first, last + 1, device=rows.device)):
        return [plane[first : last + 1] for plane in planes]
    return [plane.index_select(0, rows) for plane in planes]


def _attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None = None, positions: Tensor | None = None
) -> Tensor:
    """One sequence: ``q [T, Hq, D]`` over ``k [L, Hkv, D]``, ``v [L, Hkv, Dv]``; returns ``[T, Hq, Dv]``."""
    tokens, d_v = len(q), v.shape[-1]
    if positions is not None and window is None and has_triton(q.device.type):
        chosen = chosen_attention()
        if chosen.serves(q, d_v):
            out: Tensor = chosen.attend_chosen(q, k.to(q.dtype), v.to(q.dtype), positions, scale)
            return out
    width = max(q.shape[-1], d_v)  # the fast path wants equal widths; zeros change neither scores nor outputs
    q, k, v = (_widen(x.to(q.dtype), width).transpose(0, 1).unsqueeze(0) for x in (q, k, v))  # [1, H, T or L, D]
    length = k.shape[2]
    is_causal = positions is None and (window is None or window >= length)
    mask: Tensor | None = None
    if positions is not None:
        mask = _mask_at(positions, length, window, q)
    elif not is_causal:
        mask = _mask(tokens, length, window, q)
    elif length > tokens:
        # a GPU's kernels know such masks by their shape, and skip what they hide
        mask = causal_lower_right(tokens, length) if q.is_cuda else _mask(tokens, length, None, q)
    if q.is_cuda and (not is_causal or q.dtype == torch.float32):
        # the kernel that takes any mask, and fp32, wants as many KV heads as there are query heads
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    mixed = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return mixed[0].transpose(0, 1)[..., :d_v]


def _widen(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


def _mask(tokens: int, length: int, window: int | None, like: Tensor) -> Tensor:
    """0 where query t of the ``tokens`` newest sees token j of ``length``, else -inf: ``[T, L]``."""
    # additive: a boolean mask would be turned into this one at every call
    hidden = torch.full((tokens, length), float("-inf"), dtype=like.dtype, device=like.device)
    later = hidden.triu(length - tokens + 1)
    return later if window is None else later + hidden.tril(length - tokens - window)


def _mask_at(positions: Tensor, length: int, window: int | None, like: Tensor) -> Tensor:
    """The same for queries at ``positions [T]`` among the ``length`` tokens."""
    at, tokens = positions.unsqueeze(1), torch.arange(length, device=like.device)
    unseen = tokens > at if window is None else (tokens > at) | (tokens <= at - window)  # [T, L]
    return torch.zeros(unseen.shape, dtype=like.dtype, device=like.device).masked_fill_(unseen, float("-inf"))


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
        positions: as for `paged_attention`.

    Returns:
        ``[B, T, H, d_v]`` in q_nope's dtype.
    """
    out = torch.empty(*q_nope.shape[:3], w_v.shape[1], dtype=q_nope.dtype, device=q_nope.device)
    attend = (
        _attend_expanded if _expanding_is_cheaper(q_nope.shape[1], q_rope.shape[-1], w_k, w_v) else _attend_absorbed
    )
    for i, sequence in enumerate(rows):
        past_latent, past_rope = _read((latent, rope), sequence)
        at = None if positions is None else positions[i]
        out[i] = attend(q_nope[i], q_rope[i], past_latent, past_rope, w_k, w_v, scale, at)
    return out


def _expanding_is_cheaper(tokens: int, d_r: int, w_k: Tensor, w_v: Tensor) -> bool:
    """Compare the products per past token and head: T queries on latents, or on keys and values made from them."""
    d_n, c = w_k.shape[1:]
    d_v = w_v.shape[1]
    return tokens * 2 * max(d_n + d_r, d_v) + c * (d_n + d_v) < tokens * 2 * (c + d_r)


def _attend_absorbed(
    q_nope: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    rope: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    scale: float,
    positions: Tensor | None,
) -> Tensor:
    """One sequence on its latents: all query heads share the one KV head."""
    absorbed = torch.bmm(q_nope.transpose(0, 1), w_k).transpose(0, 1)  # [T, H, c]
    k = torch.cat([latent, rope], dim=-1)  # [L, 1, c + d_r]
    # the keys stand in for the values too: the part of the output past the latent is dropped
    q = torch.cat([absorbed, q_rope], dim=-1)
    mixed = _attend(q, k, k, scale, positions=positions)[..., : latent.shape[-1]]
    return torch.bmm(mixed.transpose(0, 1), w_v.mT).transpose(0, 1)


def _attend_expanded(
    q_nope: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    rope: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    scale: float,
    positions: Tensor | None,
) -> Tensor:
    """One sequence with every latent expanded to each head's key and value."""
    heads, _, c = w_k.shape
    k_nope = (latent[:, 0] @ w_k.reshape(-1, c).mT).view(len(latent), heads, -1)  # [L, H, d_n]
    v = (latent[:, 0] @ w_v.reshape(-1, c).mT).view(len(latent), heads, -1)
    k = torch.cat([k_nope, rope.expand(-1, heads, -1)], dim=-1)
    return _attend(torch.cat([q_nope, q_rope], dim=-1), k, v, scale, positions=positions)
