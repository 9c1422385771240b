"""Triton kernels of the chunked recurrence (GPU only); ``recurrence.py`` holds the same steps in torch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _inverse_kernel(lower, inverse, C: tl.constexpr):
    # one program per matrix; the block size doubles from 1 to C / 2
    base = tl.program_id(0).to(tl.int64) * C * C
    i = tl.arange(0, C)
    offset = base + i[:, None] * C + i[None, :]
    system = tl.load(lower + offset).to(tl.float32)
    row, col = i[:, None], i[None, :]
    result = tl.where(row == col, 1.0, 0.0)
    joins = (row == col + 1) & (col % 2 == 0)
    result -= tl.where(joins, system, 0.0)
    for level in tl.static_range(1, 6):
        size: tl.constexpr = 1 << level
        joins = (row // size == col // size + 1) & ((col // size) % 2 == 0)
        part = tl.dot(tl.where(joins, system, 0.0), result, input_precision="tf32")
        result -= tl.dot(result, part, input_precision="tf32")
    tl.store(inverse + offset, result.to(inverse.dtype.element_ty))


def unit_lower_inverse(lower: Tensor) -> Tensor:
    """``(I + L)^-1`` of strictly lower triangular ``L [..., 64, 64]``."""
    lower = lower.contiguous()
    inverse = torch.empty_like(lower)
    _inverse_kernel[(lower.numel() // 4096,)](lower, inverse, C=64, num_warps=4)
    return inverse


@triton.jit
def _scan_kernel(
    decay, both, grad, out, chunks, H: tl.constexpr, D: tl.constexpr, V: tl.constexpr, TILE: tl.constexpr, BACK: tl.constexpr
):
    # one program per (sequence, head, tile of value columns); the state stays in registers
    pair = tl.program_id(0)
    sequence, head = pair // H, pair % H
    d = tl.arange(0, D)
    v = tl.program_id(1) * TILE + tl.arange(0, TILE)
    state = tl.zeros([D, TILE], dtype=tl.float32)
    for step in range(chunks):
        t = chunks - 1 - step if BACK else step
        index = (sequence * chunks + t).to(tl.int64) * H + head
        tile = index * D * V + d[:, None] * V + v[None, :]
        tl.store(out + tile, state.to(out.dtype.element_ty))
        matrix = both + index * D * (V + D)
        scale = tl.load(decay + index)
        if BACK:
            a = tl.load(matrix + V + d[None, :] * (V + D) + d[:, None])  # transposed
            added = tl.load(grad + tile)
        else:
            a = tl.load(matrix + V + d[:, None] * (V + D) + d[None, :])
            added = tl.load(matrix + d[:, None] * (V + D) + v[None, :])
        removed = tl.dot(a.to(tl.float32), state, input_precision="tf32")
        state = scale * state + added.to(tl.float32) - removed


def _scan(decay: Tensor, both: Tensor, grad: Tensor | None, chunks: int) -> Tensor:
    count, heads, dim, width = both.shape
    value = width - dim
    tile = 32
    both, decay = both.contiguous(), decay.contiguous()
    out = torch.empty(count, heads, dim, value, dtype=both.dtype, device=both.device)
    _scan_kernel[(count // chunks * heads, value // tile)](
        decay, both, out if grad is None else grad, out, chunks,
        H=heads, D=dim, V=value, TILE=tile, BACK=grad is not None, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


def scan_forward(decay: Tensor, both: Tensor, chunks: int) -> Tensor:
    """State before each chunk ``[M, H, D, V]``; decay ``[M, H]`` fp32, both ``[M, H, D, V + D]``."""
    return _scan(decay, both, None, chunks)


def scan_backward(decay: Tensor, both: Tensor, grad: Tensor, chunks: int) -> Tensor:
    """Gradient of the state after each chunk ``[M, H, D, V]``, from the gradients of the states before each chunk."""
    return _scan(decay, both, grad.to(both.dtype), chunks)
