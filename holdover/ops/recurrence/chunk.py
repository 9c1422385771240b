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

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from holdover.ops.slots import in_place

CHUNK = 32

# elements of a tensor that are worked on at once: temporaries stay in the cache and are reused by the allocator
TILE = 1 << 18

# chunk sizes are a power of two times this; KDA pairs decays inside such a block directly
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


def advance(
    family: Callable[..., Tensor], pool: Tensor, slots: Tensor, inputs: Sequence[Tensor], out: Tensor
) -> Tensor:
    """Run ``family(state, *chunks) -> outputs`` over ``inputs [B, T, H, ...]``, tile by tile, into ``out``.

    ``family`` gets states ``[b, H, d_k, d_v]`` to advance in place and each input as chunks
    ``[N, b, H, C, ...]``; it returns ``[N, b, H, C, d_v]``.
    """
    for part, state in in_place(pool, slots):
        for span in spans(out[part]):
            join(family(state, *(cut(x[part], span) for x in inputs)), out[part], span)
    return out


def pairwise_decay(total: Tensor) -> Tensor:
    """``exp(total_i - total_j)`` for j <= i, 0 above the diagonal: ``[..., C] -> [..., C, C]``."""
    # above the diagonal exp may be inf; tril assigns zero there and does not multiply
    return (total.unsqueeze(-1) - total.unsqueeze(-2)).exp_().tril_()


def unit_lower_inverse(lower: Tensor) -> Tensor:
    """``(I + L)^-1`` for the part L of ``lower [M, C, C]`` below the diagonal, by substitution.

    Products of powers of L need no solver, but grow without bound where keys are nearly parallel and cancel only in
    exact arithmetic.
    """
    eye = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
    # the solver works on columns: transposed, it reads and writes these row-major matrices without a copy
    inverse: Tensor = torch.linalg.solve_triangular(lower.mT, eye, upper=True, left=False, unitriangular=True)
    return inverse.mT


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
