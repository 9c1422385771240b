"""Triton kernels of products whose key channels decay apart (GPU only); ``recurrence.ChannelProducts`` in torch.

A chunk of C = 64 rows is cut into blocks of B = 16.  Left of the diagonal blocks, a product of two matrices does it:
rows decayed from the last row before their block, columns decayed up to that row, so both exponents are at most 0.
Within diagonal blocks the difference is taken for each pair of rows.
"""

# ruff: noqa: N803 (compile-time arguments of kernels are capitals by custom)
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _decays(seen, exponent):
    # exp where seen, else 0; what is not seen may be positive and must not overflow
    return tl.where(seen, tl.exp(tl.where(seen, exponent, 0.0)), 0.0)


@triton.jit
def _products_kernel(q, k, g, qk, kk, C: tl.constexpr, D: tl.constexpr, B: tl.constexpr):
    # one program per chunk and head
    rows = tl.program_id(0).to(tl.int64) * C * D
    square = tl.program_id(0).to(tl.int64) * C * C
    i, d = tl.arange(0, C), tl.arange(0, D)
    at = rows + i[:, None] * D + d[None, :]
    qs, ks, gs = tl.load(q + at), tl.load(k + at), tl.load(g + at)
    of_q, of_k = tl.zeros([C, C], dtype=tl.float32), tl.zeros([C, C], dtype=tl.float32)
    for block in tl.static_range(1, C // B):
        middle = tl.load(g + rows + (block * B - 1) * D + d)[None, :]
        down = _decays((i // B == block)[:, None], gs - middle)
        up = tl.trans(ks * _decays((i < block * B)[:, None], middle - gs))
        of_q += tl.dot(qs * down, up, input_precision="tf32")
        of_k += tl.dot(ks * down, up, input_precision="tf32")
    other = i[:, None] // B != i[None, :] // B
    place = square + i[:, None] * C + i[None, :]
    tl.store(qk + place, of_q, mask=other)
    tl.store(kk + place, of_k, mask=other)
    for column in range(B):
        j = i // B * B + column
        source = rows + j[:, None] * D + d[None, :]
        kept = tl.load(k + source) * _decays((i >= j)[:, None], gs - tl.load(g + source))
        tl.store(qk + square + i * C + j, tl.sum(qs * kept, 1))
        tl.store(kk + square + i * C + j, tl.where(i > j, tl.sum(ks * kept, 1), 0.0))


@triton.jit
def _backward_kernel(
    q, k, g, of_qk, of_kk, of_q, of_k, of_g, C: tl.constexpr, D: tl.constexpr, B: tl.constexpr
):  # fmt: skip
    # each pair of rows acts on the later one (as a row) and on the earlier one (as a column)
    rows = tl.program_id(0).to(tl.int64) * C * D
    square = tl.program_id(0).to(tl.int64) * C * C
    i, d = tl.arange(0, C), tl.arange(0, D)
    at = rows + i[:, None] * D + d[None, :]
    place = square + i[:, None] * C + i[None, :]
    qs, ks, gs = tl.load(q + at), tl.load(k + at), tl.load(g + at)
    change_q = tl.zeros([C, D], dtype=tl.float32)
    change_row = tl.zeros([C, D], dtype=tl.float32)
    change_column = tl.zeros([C, D], dtype=tl.float32)
    for block in tl.static_range(1, C // B):
        middle = tl.load(g + rows + (block * B - 1) * D + d)[None, :]
        down = _decays((i // B == block)[:, None], gs - middle)
        up = _decays((i < block * B)[:, None], middle - gs)
        p, s = tl.load(of_qk + place), tl.load(of_kk + place)
        change_q += down * tl.dot(p, ks * up, input_precision="tf32")
        change_row += down * tl.dot(s, ks * up, input_precision="tf32")
        both = tl.dot(tl.trans(p), qs * down, input_precision="tf32")
        both += tl.dot(tl.trans(s), ks * down, input_precision="tf32")
        change_column += up * both
    for other in range(B):
        j = i // B * B + other
        source = rows + j[:, None] * D + d[None, :]
        qj, kj, gj = tl.load(q + source), tl.load(k + source), tl.load(g + source)
        kept = kj * _decays((i >= j)[:, None], gs - gj)
        change_q += tl.load(of_qk + square + i * C + j)[:, None] * kept
        change_row += tl.where(i > j, tl.load(of_kk + square + i * C + j), 0.0)[:, None] * kept
        on_q = tl.load(of_qk + square + j * C + i)[:, None]
        on_k = tl.where(j > i, tl.load(of_kk + square + j * C + i), 0.0)[:, None]
        change_column += (on_q * qj + on_k * kj) * _decays((j >= i)[:, None], gj - gs)
    tl.store(of_q + at, change_q)
    tl.store(of_k + at, change_row + change_column)
    tl.store(of_g + at, qs * change_q + ks * (change_row - change_column))


_SIZES = {"C": 64, "B": 16, "num_warps": 8}


def products(q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """As ``recurrence.ChannelProducts``; q, k, g ``[M, H, 64, D]`` fp32, D a power of two."""
    q, k, g = q.contiguous(), k.contiguous(), g.contiguous()
    qk = torch.empty(*q.shape[:-1], q.shape[-2], dtype=q.dtype, device=q.device)
    kk = torch.empty_like(qk)
    _products_kernel[(q.shape[0] * q.shape[1],)](q, k, g, qk, kk, D=q.shape[-1], **_SIZES)
    return qk, kk


def products_backward(q: Tensor, k: Tensor, g: Tensor, of_qk: Tensor, of_kk: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and g."""
    given = [x.contiguous() for x in (q, k, g, of_qk, of_kk)]
    out = [torch.empty_like(given[0]) for _ in range(3)]
    _backward_kernel[(q.shape[0] * q.shape[1],)](*given, *out, D=q.shape[-1], **_SIZES)
    return out[0], out[1], out[2]
