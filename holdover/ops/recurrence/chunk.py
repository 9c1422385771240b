"""Chunkwise form of a decayed rank-one recurrence: what GDN, KDA and Mamba-2 share.

Tokens are cut into chunks of C. With G the running log decay inside a chunk, S the state before it and, per token,
a read q, a write k and an update u, every family is::

    o_i = (q_i exp(G_i))^T S + sum_{j <= i} mix_ij u_j        mix_ij = sum_d q_id k_jd exp(G_id - G_jd)
    S'  = exp(G_C) S + sum_j (k_j exp(G_C - G_j)) u_j^T

For Mamba-2 the updates are the scaled inputs. The delta rule corrects them: ``u = T (beta v) - (T beta k exp(G)) S``
with ``T = (I + L)^-1`` and ``L_ij = beta_i sum_d k_id k_jd exp(G_id - G_jd)`` for j < i. All but the scan over
chunks is done for every chunk at once, on tensors laid out ``[N, B, H, C, ...]``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 32

# elements of a tensor that are worked on at once: temporaries stay in the cache and are reused by the allocator
TILE = 1 << 17

# blocks of this size are inverted, and KDA's decays paired, directly; every size above is a power of two times it
BLOCK = 8

# what a decay of exp(-18) leaves is a quarter of fp32's rounding; the floor bounds every exponent that is formed
FLOOR = -18.0


class Span(NamedTuple):
    """Tokens ``start`` to ``stop``, cut into chunks of ``size``; the last one is padded if they do not fill it."""

    start: int
    stop: int
    size: int


def spans(values: Tensor) -> list[Span]:
    """Full chunks of ``values [B, T, H, d_v]`` in tiles, then the rest as one chunk of its own.

    Every chunk of a call cut at a multiple of CHUNK does the arithmetic that it does in the whole call.
    """
    batch, tokens, heads, width = values.shape
    tile = CHUNK * max(1, TILE // (batch * heads * CHUNK * width))
    rest = tokens % CHUNK
    full = tokens - rest
    size = BLOCK
    while size < rest:
        size *= 2
    tiles = [Span(start, min(start + tile, full), CHUNK) for start in range(0, full, tile)]
    return [*tiles, Span(full, tokens, size)] if rest else tiles


def cut(x: Tensor, span: Span) -> Tensor:
    """Fresh fp32 copy ``[N, B, H, C, ...]`` of ``x [B, T, H, ...]``; padding is zero and so writes nothing."""
    x = x[:, span.start : span.stop]
    missing = -x.shape[1] % span.size
    if missing:
        x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, missing))
    chunks = x.reshape(x.shape[0], -1, span.size, *x.shape[2:]).transpose(0, 1).transpose(2, 3)
    return torch.empty(chunks.shape, dtype=torch.float32, device=x.device).copy_(chunks)


def join(chunks: Tensor, out: Tensor, span: Span) -> None:
    """Write ``chunks [N, B, H, C, D]`` to tokens ``span`` of ``out [B, T, H, D]``."""
    tokens = chunks.transpose(2, 3).movedim(0, 1).flatten(1, 2)  # [B, N * C, H, D]
    out[:, span.start : span.stop] = tokens[:, : span.stop - span.start]


def pairwise_decay(total: Tensor) -> Tensor:
    """``exp(total_i - total_j)`` for j <= i, 0 above the diagonal: ``[..., C] -> [..., C, C]``."""
    # above the diagonal exp may be inf; tril assigns zero there and does not multiply
    return (total.unsqueeze(-1) - total.unsqueeze(-2)).exp_().tril_()


def unit_lower_inverse(lower: Tensor) -> Tensor:
    """``(I + L)^-1`` for the part L of ``lower [M, C, C]`` below the diagonal; C is a power of two.

    Neighbouring blocks on the diagonal, inverted already, are joined by
    ``[[P, 0], [R, Q]]^-1 = [[P^-1, 0], [-Q^-1 R P^-1, Q^-1]]`` until one block is left. Powers of L would take as
    many products, but grow without bound where keys are nearly parallel and cancel only in exact arithmetic.
    """
    length = lower.shape[-1]
    corners = _corners(length, lower.dtype, lower.device)
    inverse = torch.eye(length, dtype=lower.dtype, device=lower.device) - lower * corners[0]
    for corner in corners[1:]:
        inverse.baddbmm_(torch.bmm(inverse, lower * corner), inverse, alpha=-1)
    return inverse


@lru_cache(maxsize=16)
def _corners(length: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """For blocks of 2, 4, ... C: ones ``[C, C]`` on the lower left quarter of every block on the diagonal."""
    with torch.inference_mode(False):
        index = torch.arange(length, device=device)
        row, column = index.unsqueeze(1), index
        # the highest bit in which row and column differ says at which size they are joined
        return tuple(
            ((row ^ column) >> level == 1).logical_and(row > column).to(dtype)
            for level in range(length.bit_length() - 1)
        )


def diagonal_blocks(x: Tensor, size: int) -> Tensor:
    """View ``[..., C // size, size, size]`` of the blocks on the diagonal of ``x [..., C, C]``."""
    count = x.shape[-1] // size
    blocks = x.view(*x.shape[:-2], count, size, count, size)
    return blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def scan(
    state: Tensor,
    keep: Tensor,
    reads: Tensor,
    writes: Tensor,
    mix: Tensor,
    updates: Tensor,
    correction: Tensor | None = None,
) -> Tensor:
    """Advance ``state [M, d_k, d_v]`` in place over N chunks; ``updates`` is overwritten as well.

    Args:
        state: M = B * H states.
        keep: decay over a chunk ``[N, M, 1 or d_k, 1]``.
        reads: ``q exp(G)`` ``[N, M, C, d_k]``.
        writes: ``k exp(G_C - G)`` ``[N, M, C, d_k]``.
        mix: ``[N, M, C, C]``.
        updates: u, or for the delta rule its part that does not depend on the state ``[N, M, C, d_v]``.
        correction: ``T beta k exp(G)`` ``[N, M, C, d_k]``, for the delta rule.

    Returns:
        Outputs ``[N, M, C, d_v]``.
    """
    out = torch.empty_like(updates)
    corrections = [None] * len(out) if correction is None else correction.unbind()
    for o, u, c, r, w, d in zip(
        out.unbind(), updates.unbind(), corrections, reads.unbind(), writes.mT.unbind(), keep.unbind(), strict=True
    ):
        if c is not None:
            u.baddbmm_(c, state, alpha=-1)
        torch.bmm(r, state, out=o)
        state.mul_(d).baddbmm_(w, u)
    out.flatten(0, 1).baddbmm_(mix.flatten(0, 1), updates.flatten(0, 1))
    return out
