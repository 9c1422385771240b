"""Mamba-2 on a pool of states: one token or a sequence, in fp32 whatever the inputs' dtype."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from holdover.ops.recurrence import chunk
from holdover.ops.slots import in_place


def step(pool: Tensor, slots: Tensor, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Advance the states at ``slots`` by one token, in place; no other slot changes.

    Args:
        pool: ``[S, H, N, P]`` fp32; may be strided over S.
        slots: ``[B]`` int64, distinct.
        x: ``[B, H, P]``.
        dt: step sizes ``[B, H]``, already biased, softplus'ed and clamped.
        a: ``[H]``, negative.
        b: ``[B, G, N]``; a group serves ``H // G`` consecutive heads.
        c: ``[B, G, N]``.
        d: skip ``[H]``.

    Returns:
        ``[B, H, P]`` in x's dtype.
    """
    out = torch.empty_like(x)
    for part, state in in_place(pool, slots):
        out[part] = _step(a, d, state, x[part].float(), dt[part].float(), b[part].float(), c[part].float())
    return out


def _step(a: Tensor, d: Tensor, state: Tensor, x: Tensor, dt: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """`step` on ``state [B, H, N, P]`` in place; returns ``[B, H, P]`` in fp32."""
    batch, heads, width = x.shape
    groups, size = b.shape[1:]
    state.mul_((dt * a).exp()[..., None, None])
    grouped = state.view(batch * groups, heads // groups, size, width)
    written = (x * dt.unsqueeze(-1)).view(batch * groups, -1, 1, width)
    grouped.addcmul_(b.reshape(batch * groups, 1, size, 1), written)
    read = torch.matmul(c.reshape(batch * groups, 1, 1, size), grouped)  # [B * G, r, 1, P]
    return torch.addcmul(read.view(batch, heads, width), x, d.float().unsqueeze(-1))


def sequence(pool: Tensor, slots: Tensor, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Advance the states at ``slots`` by T tokens, in place; no other slot changes.

    Args:
        pool: ``[S, H, N, P]`` fp32; may be strided over S.
        slots: ``[B]`` int64, distinct.
        x: ``[B, T, H, P]``.
        dt: step sizes ``[B, T, H]``, already biased, softplus'ed and clamped.
        a: ``[H]``, negative.
        b: ``[B, T, G, N]``.
        c: ``[B, T, G, N]``.
        d: skip ``[H]``.

    Returns:
        ``[B, T, H, P]`` in x's dtype.
    """
    if x.shape[1] == 1:
        return step(pool, slots, x[:, 0], dt[:, 0], a, b[:, 0], c[:, 0], d).unsqueeze(1)
    return chunk.advance(partial(_advance, a, d), pool, slots, [x, dt, b, c], torch.empty_like(x))


def _advance(a: Tensor, d: Tensor, state: Tensor, x: Tensor, dt: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Chunks ``[N, B, H or G, C, ...]`` through ``state [B, H, N, P]``; returns ``[N, B, H, C, P]``."""
    chunks, batch, heads, size, width = x.shape
    groups, d_k = b.shape[2], b.shape[4]
    grouped = (chunks * batch * groups, heads // groups)  # what a group's products are repeated over
    flat = (chunks, batch * heads)

    log_decay = (dt * a.float().unsqueeze(-1)).clamp_(min=chunk.FLOOR)
    total = log_decay.cumsum(-1).view(*grouped, size)
    since_start = total.exp()
    until_end = (total[..., -1:] - total).exp_()
    b, c = b.view(-1, size, d_k), c.view(-1, size, d_k)
    mix = chunk.pairwise_decay(total).mul_(torch.bmm(c, b.mT).unsqueeze(1))  # [G, r, C, C]

    out = chunk.scan(
        state.view(batch * heads, d_k, width),
        since_start[..., -1].reshape(*flat, 1, 1),
        (c.unsqueeze(1) * since_start.unsqueeze(-1)).view(*flat, size, d_k),
        (b.unsqueeze(1) * until_end.unsqueeze(-1)).view(*flat, size, d_k),
        mix.view(*flat, size, size),
        (x * dt.unsqueeze(-1)).view(*flat, size, width),
    )
    return out.view_as(x).addcmul_(x, d.float().view(-1, 1, 1))
