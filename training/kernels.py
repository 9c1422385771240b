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
        size = 1 << level
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
    decay,
    both,
    grad,
    out,
    chunks: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    WIDTH: tl.constexpr,
    DECAYS: tl.constexpr,
    TILE: tl.constexpr,
    BACK: tl.constexpr,
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
        matrix = both + index * D * WIDTH
        scale = tl.load(decay + index * DECAYS + d % DECAYS)[:, None]
        added = tl.load(grad + tile if BACK else matrix + d[:, None] * WIDTH + v[None, :])
        after = scale * state + added.to(tl.float32)
        if WIDTH > V:
            if BACK:
                a = tl.load(matrix + V + d[None, :] * WIDTH + d[:, None])  # transposed
            else:
                a = tl.load(matrix + V + d[:, None] * WIDTH + d[None, :])
            after -= tl.dot(a.to(tl.float32), state, input_precision="tf32")
        state = after


def _scan(decay: Tensor, both: Tensor, grad: Tensor | None, value: int, chunks: int) -> Tensor:
    count, heads, dim, width = both.shape
    tile = 32
    both, decay = both.contiguous(), decay.contiguous()
    out = torch.empty(count, heads, dim, value, dtype=both.dtype, device=both.device)
    _scan_kernel[(count // chunks * heads, value // tile)](
        decay, both, out if grad is None else grad, out,
        chunks=chunks, H=heads, D=dim, V=value, WIDTH=width, DECAYS=decay.shape[-1], TILE=tile, BACK=grad is not None,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


def scan_forward(decay: Tensor, both: Tensor, value: int, chunks: int) -> Tensor:
    """State before each chunk ``[M, H, D, V]``; arguments as ``recurrence.ChunkScan``'s."""
    return _scan(decay, both, None, value, chunks)


def scan_backward(decay: Tensor, both: Tensor, grad: Tensor, value: int, chunks: int) -> Tensor:
    """Gradient of the state after each chunk ``[M, H, D, V]``, from the gradients of the states before each chunk."""
    return _scan(decay, both, grad.to(both.dtype), value, chunks)


@triton.jit
def _convolve_kernel(
    x,
    weight,
    bias,
    grad,
    out,
    partial,
    length,
    W: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    BIAS: tl.constexpr,
    BACK: tl.constexpr,
):
    # one program per tile of rows and channels; BACK gives the gradient before the activation, and of the weights
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    position = (row % length)[:, None]
    at = row[:, None] * W + col[None, :]
    total = tl.zeros([ROWS, COLS], dtype=tl.float32)
    if BIAS:
        total += tl.load(bias + col).to(tl.float32)[None, :]
    for back in tl.static_range(K):
        tap = tl.load(weight + col * K + (K - 1 - back)).to(tl.float32)
        total += tap[None, :] * tl.load(x + at - back * W, mask=position >= back, other=0.0).to(tl.float32)
    gate = tl.sigmoid(total)
    if BACK:
        change = tl.load(grad + at).to(tl.float32) * gate * (1 + total * (1 - gate))
        tl.store(out + at, change.to(out.dtype.element_ty))
        base = (tl.program_id(0) * W + col) * (K + 1)
        tl.store(partial + base + K, tl.sum(change, 0))
        for back in tl.static_range(K):
            shifted = tl.load(x + at - back * W, mask=position >= back, other=0.0).to(tl.float32)
            tl.store(partial + base + (K - 1 - back), tl.sum(change * shifted, 0))
    else:
        tl.store(out + at, (total * gate).to(out.dtype.element_ty))


@triton.jit
def _correlate_kernel(
    change, weight, out, length, W: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr
):
    # the convolution's transpose: gradient of the input from the gradient before the activation
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    left = (length - 1 - row % length)[:, None]
    at = row[:, None] * W + col[None, :]
    total = tl.zeros([ROWS, COLS], dtype=tl.float32)
    for back in tl.static_range(K):
        tap = tl.load(weight + col * K + (K - 1 - back)).to(tl.float32)
        total += tap[None, :] * tl.load(change + at + back * W, mask=left >= back, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty))


_TILE = {"ROWS": 64, "COLS": 64, "num_warps": 4}


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, grad: Tensor, length: int, back: bool) -> list[Tensor]:
    rows, width = x.shape
    taps = weight.shape[1]
    grid = (rows // _TILE["ROWS"], width // _TILE["COLS"])
    out = torch.empty_like(x)
    partial = torch.empty(grid[0] if back else 0, width, taps + 1, dtype=torch.float32, device=x.device)
    _convolve_kernel[grid](
        x, weight, weight if bias is None else bias, grad, out, partial, length,
        W=width, K=taps, BIAS=bias is not None, BACK=back, **_TILE,
    )  # fmt: skip
    return [out, partial]


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, length: int) -> Tensor:
    """Causal depthwise convolution and SiLU of flat sequences of ``length``: x ``[N, W]``, weight ``[W, K]``.

    N and W are multiples of 64.
    """
    x = x.contiguous()
    return _convolve(x, weight.contiguous(), bias, x, length, back=False)[0]


def convolve_backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, grad: Tensor, length: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of x, weight and bias."""
    x, weight, grad = x.contiguous(), weight.contiguous(), grad.contiguous()
    change, partial = _convolve(x, weight, bias, grad, length, back=True)
    out = torch.empty_like(x)
    grid = (x.shape[0] // _TILE["ROWS"], x.shape[1] // _TILE["COLS"])
    _correlate_kernel[grid](change, weight, out, length, W=x.shape[1], K=weight.shape[1], **_TILE)
    sums = partial.sum(0)
    return out, sums[:, :-1], None if bias is None else sums[:, -1]
