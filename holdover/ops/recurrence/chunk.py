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

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 32

# blocks of this size are inverted, and KDA's decays paired, directly; every size above is a power of two times it
BLOCK = 8

# what a decay of exp(-18) leaves is a quarter of fp32's rounding; the floor bounds every exponent that is formed
FLOOR = -18.0


class Span(NamedTuple):
    """Tokens ``start`` to ``stop``, cut into chunks of ``size``; the last one is padded if they do not fill it."""

    start: int
    stop: int
    size: int


def spans(tokens: int) -> list[Span]:
    """Full chunks, then the rest as one chunk of its own.

    A call cut at a multiple of CHUNK so does the same arithmetic as the whole call.
    """
    rest = tokens % CHUNK
    size = BLOCK
    while size < rest:
        size *= 2
    parts = [Span(0, tokens - rest, CHUNK), Span(tokens - rest, tokens, size)]
    return [span for span in parts if span.start < span.stop]


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
    """``(I + L)^-1`` for the part L of ``lower [M, C, C]`` below the diagonal; C is BLOCK times a power of two.

    Blocks of BLOCK by a product of powers, which nearly parallel keys do not make grow at that size; pairs of
    blocks then by ``[[P, 0], [R, Q]]^-1 = [[P^-1, 0], [-Q^-1 R P^-1, Q^-1]]``.
    """
    size = BLOCK
    power = diagonal_blocks(lower, size).tril(-1).flatten(0, 1)
    inverse = torch.eye(size, dtype=lower.dtype, device=lower.device) - power
    for _ in range(size.bit_length() - 2):
        power = power @ power
        inverse = torch.baddbmm(inverse, inverse, power)
    while size < lower.shape[-1]:
        left, right = inverse.view(-1, 2, size, size).unbind(1)
        corner = diagonal_blocks(lower, 2 * size)[..., size:, :size].flatten(0, 1)
        inverse = torch.zeros(len(left), 2 * size, 2 * size, dtype=lower.dtype, device=lower.device)
        inverse[:, :size, :size] = left
        inverse[:, size:, size:] = right
        inverse[:, size:, :size] = torch.bmm(right, torch.bmm(corner, left)).neg_()
        size *= 2
    return inverse


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
    for n, update in enumerate(updates.unbind()):
        if correction is not None:
            update.baddbmm_(correction[n], state, alpha=-1)
        torch.bmm(reads[n], state, out=out[n]).baddbmm_(mix[n], update)
        state.mul_(keep[n]).baddbmm_(writes[n].mT, update)
    return out
