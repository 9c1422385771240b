"""Kimi Delta Attention on a pool of states: one token or a sequence, in fp32 whatever the inputs' dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from holdover.ops.recurrence import chunk, delta


def step(pool: Tensor, slots: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """Advance the states at ``slots`` by one token, in place; no other slot changes.

    Args:
        pool: ``[S, H, d_k, d_v]`` fp32; may be strided over S.
        slots: ``[B]`` int64, distinct.
        q: raw queries ``[B, H, d_k]``.
        k: raw keys ``[B, H, d_k]``.
        v: values ``[B, H, d_v]``.
        log_decay: ``[B, H, d_k]``.
        beta: ``[B, H]``.

    Returns:
        ``[B, H, d_v]`` in q's dtype.
    """
    return delta.step(pool, slots, q, k, v, log_decay.float().exp(), beta)


def sequence(pool: Tensor, slots: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """Advance the states at ``slots`` by T tokens, in place; no other slot changes.

    Args:
        pool: ``[S, H, d_k, d_v]`` fp32; may be strided over S.
        slots: ``[B]`` int64, distinct.
        q: raw queries ``[B, T, H, d_k]``.
        k: raw keys ``[B, T, H, d_k]``.
        v: values ``[B, T, H, d_v]``.
        log_decay: ``[B, T, H, d_k]``.
        beta: ``[B, T, H]``.

    Returns:
        ``[B, T, H, d_v]`` in q's dtype.
    """
    if q.shape[1] == 1:
        return step(pool, slots, q[:, 0], k[:, 0], v[:, 0], log_decay[:, 0], beta[:, 0]).unsqueeze(1)
    return chunk.advance(_advance, pool, slots, [q, k, v, log_decay, beta], torch.empty_like(v, dtype=q.dtype))


def _advance(state: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """Chunks ``[N, B, H, C, ...]`` through ``state [B, H, d_k, d_v]``; returns ``[N, B, H, C, d_v]``."""
    chunks, batch, heads, size, d_v = v.shape
    d_k = k.shape[4]
    flat = (chunks, batch * heads)

    total = log_decay.clamp_(min=chunk.FLOOR).cumsum(-2).view(-1, size, d_k)  # [M, C, d_k]
    q = q.mul_(delta.inverse_norm(q).mul_(d_k**-0.5)).view(-1, size, d_k)
    k = k.mul_(delta.inverse_norm(k)).view(-1, size, d_k)
    beta = beta.view(-1, size)

    mix, lower = _pair(q, k, total)
    inverse = chunk.unit_lower_inverse(lower.mul_(beta.unsqueeze(-1))).mul_(beta.unsqueeze(-2))
    since_start = total.exp()
    updates = torch.bmm(inverse, v.view(-1, size, d_v))
    correction = torch.bmm(inverse, k * since_start)

    out = chunk.scan(
        state.view(batch * heads, d_k, d_v),
        since_start[:, -1].reshape(*flat, d_k, 1),
        (q * since_start).view(*flat, size, d_k),
        (total[:, -1:] - total).exp_().mul_(k).view(*flat, size, d_k),
        mix.view(*flat, size, size),
        updates.view(*flat, size, d_v),
        correction.view(*flat, size, d_k),
    )
    return out.view(chunks, batch, heads, size, d_v)


def _pair(q: Tensor, k: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """``sum_d x_id k_jd exp(total_id - total_jd)`` for j <= i, with x = q and x = k: two ``[M, C, C]``.

    A product of exponentials referred to one point of a chunk overflows, so the pairs are split by halving: the
    lower left quarter of a block pairs rows after its middle with columns before it, and referred to the middle
    both factors are at most 1. Blocks of `chunk.BLOCK` are referred to their own middle, where the decay floor
    keeps both within range.
    """
    count, size, d_k = q.shape
    rows = torch.stack([q, k], dim=1)  # [M, 2, C, d_k]
    mix, lower = torch.zeros(2, count, size, size, dtype=q.dtype, device=q.device).unbind()
    block = chunk.BLOCK
    after, before = slice(None), slice(None)
    while block <= size:
        local = total.view(count, -1, block, d_k)  # [M, nb, c, d_k]
        local = local - local[:, :, block // 2 - 1 : block // 2]
        left = rows.view(count, 2, -1, block, d_k)[:, :, :, after]
        right = k.view(count, -1, block, d_k)[:, :, before]
        products = _products(left, local[:, :, after], right, local[:, :, before])
        if block == chunk.BLOCK:
            products.tril_()
        for pairs, product in zip((mix, lower), products.unbind(2), strict=True):
            _diagonal_blocks(pairs, block)[:, :, after, before] = product
        after, before = slice(block, None), slice(0, block)
        block *= 2
    return mix, lower


def _products(left: Tensor, after: Tensor, right: Tensor, before: Tensor) -> Tensor:
    """``(left exp(after)) (right exp(-before))^T`` block by block.

    Takes ``left [M, 2, nb, c, d_k]`` and ``after``, ``right``, ``before`` ``[M, nb, c, d_k]``; returns
    ``[M, nb, 2, c, c]``.
    """
    count, both, blocks, size, d_k = left.shape
    rows = torch.empty(count, blocks, both, size, d_k, dtype=left.dtype, device=left.device)
    torch.mul(left.transpose(1, 2), after.exp().unsqueeze(2), out=rows)
    columns = before.neg().exp_().mul_(right)
    products = torch.bmm(rows.view(-1, both * size, d_k), columns.view(-1, size, d_k).mT)
    return products.view(count, blocks, both, size, size)


def _diagonal_blocks(x: Tensor, size: int) -> Tensor:
    """View ``[..., C // size, size, size]`` of the blocks on the diagonal of ``x [..., C, C]``."""
    count = x.shape[-1] // size
    blocks = x.view(*x.shape[:-2], count, size, count, size)
    return blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
