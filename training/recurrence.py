"""What the chunked recurrences of training share; ``forwards/`` holds one rule a file.

Shapes: ``N`` tokens in all (batch × length, flat), ``C = 64`` tokens a chunk, ``M = N / C`` chunks, ``H`` heads, head
dimension ``D`` (keys; Mamba-2's state size) and ``V`` (values).  A head's state is ``[D, V]``.

A chunked form writes the step over one chunk as ``S' = d·S + B - A·S`` with ``d`` the chunk's decay, so that all the
work but one small product per chunk is batched over chunks.  The inverse of a chunk's unit lower triangular system is
built by doubling its block size (``T ← T - T·L·T`` with L the blocks that join two neighbours): only products, and as
stable as substitution, which a product of powers ``∏(I + (-N)^(2^i))`` is not when keys repeat.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    import triton  # noqa: F401

    from training import channels, kernels
except ImportError:  # no triton on this machine: the torch forms below are used
    channels = kernels = None  # type: ignore[assignment]

CHUNK = 64


def l2norm(x: Tensor) -> Tensor:
    """Unit length over the last dimension, as Transformers does it."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def chunked(x: Tensor) -> Tensor:
    """Flat tokens as chunks: ``[N, H, ...] -> [M, H, C, ...]``."""
    return x.reshape(-1, CHUNK, *x.shape[1:]).transpose(1, 2)


def flat(x: Tensor) -> Tensor:
    """Sequences ``[B, T, ...]`` as flat tokens, every sequence padded with zeros to whole chunks."""
    return F.pad(x, (0, 0) * (x.ndim - 2) + (0, -x.shape[1] % CHUNK)).flatten(0, 1)


def _shift(x: Tensor, back: int, length: int) -> Tensor:
    """Row t - back in place of row t of flat sequences ``[N, W]``, 0 before their starts; ``back`` may be negative."""
    rows = x.unflatten(0, (-1, length))
    moved = F.pad(rows, (0, 0, back, 0))[:, :length] if back >= 0 else F.pad(rows, (0, 0, 0, -back))[:, -back:]
    return moved.flatten(0, 1)


class Convolution(torch.autograd.Function):
    """Causal depthwise convolution, then SiLU, of flat sequences of ``length``.

    x ``[N, W]``, weight ``[W, K]``, bias ``[W]`` or None.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, length: int) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.length = length
        if x.is_cuda and kernels is not None:
            return kernels.convolve(x, weight, bias, length)
        return F.silu(Convolution.before(x, weight, bias, length))

    @staticmethod
    def before(x: Tensor, weight: Tensor, bias: Tensor | None, length: int) -> Tensor:
        """The convolution without its activation."""
        taps = [_shift(x, back, length) * weight[:, -1 - back] for back in range(weight.shape[1])]
        return torch.stack(taps).sum(0) + (0.0 if bias is None else bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        x, weight, bias = ctx.saved_tensors
        if x.is_cuda and kernels is not None:
            return *kernels.convolve_backward(x, weight, bias, grad, ctx.length), None
        total = Convolution.before(x, weight, bias, ctx.length)
        gate = total.sigmoid()
        change = grad * gate * (1 + total * (1 - gate))
        taps = range(weight.shape[1])
        out = torch.stack([_shift(change, -back, ctx.length) * weight[:, -1 - back] for back in taps]).sum(0)
        of_weight = torch.stack([(change * _shift(x, back, ctx.length)).sum(0) for back in reversed(taps)], -1)
        return out, of_weight, None if bias is None else change.sum(0), None


def _join_mask(size: int, device: torch.device) -> Tensor:
    """``[C, C]``: the lower left blocks that join each pair of neighbouring blocks of ``size``."""
    i = torch.arange(CHUNK, device=device)
    block = i // size
    return (block[:, None] == block[None, :] + 1) & (block[None, :] % 2 == 0)


class UnitLowerInverse(torch.autograd.Function):
    """``(I + L)^-1`` of strictly lower triangular ``L [..., C, C]``, in L's dtype."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor) -> Tensor:
        if lower.is_cuda and kernels is not None:
            inverse = kernels.unit_lower_inverse(lower)
        else:
            inverse = torch.eye(CHUNK, dtype=lower.dtype, device=lower.device).expand_as(lower)
            size = 1
            while size < CHUNK:
                inverse = inverse - inverse @ (lower * _join_mask(size, lower.device)) @ inverse
                size *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return -(inverse.mT @ grad @ inverse.mT)


class ChunkScan(torch.autograd.Function):
    """States before each chunk: ``S[t+1] = d[t]·S[t] + B[t] - A[t]·S[t]``, ``S = 0`` at every sequence's first chunk.

    decay ``[M, H, D]`` (one a key channel) or ``[M, H, 1]``, fp32; both ``[M, H, D, V + D]`` holding ``B | A``, or
    ``B`` alone where nothing is removed (``[M, H, D, V]``); ``value`` is V, ``chunks`` the number of chunks a sequence.
    Returns ``[M, H, D, V]`` in ``both``'s dtype; the running state is fp32.
    """

    @staticmethod
    def forward(ctx: Any, decay: Tensor, both: Tensor, value: int, chunks: int) -> Tensor:
        if both.is_cuda and kernels is not None:
            states = kernels.scan_forward(decay, both, value, chunks)
        else:
            states = _scan(decay, both, value, chunks, None)
        ctx.save_for_backward(decay, both, states)
        ctx.chunks = chunks
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        decay, both, states = ctx.saved_tensors
        value = states.shape[-1]
        if both.is_cuda and kernels is not None:
            after = kernels.scan_backward(decay, both, grad.contiguous(), value, ctx.chunks)
        else:
            after = _scan(decay, both, value, ctx.chunks, grad)
        of_decay = (after.float() * states.float() if after.dtype == torch.bfloat16 else after * states).sum(-1)
        if decay.shape[-1] == 1:
            of_decay = of_decay.sum(-1, keepdim=True)
        removes = both.shape[-1] > value
        return of_decay, torch.cat([after, -(after @ states.mT)], -1) if removes else after, None, None


def _scan(decay: Tensor, both: Tensor, value: int, chunks: int, grad: Tensor | None) -> Tensor:
    """The scan in torch: forward (``grad`` None), or backward, giving the gradient of the state after each chunk."""
    heads, dim, width = both.shape[1:]
    b, a = both.reshape(-1, chunks, heads, dim, width).split([value, width - value], -1)
    d = decay.reshape(-1, chunks, heads, decay.shape[-1], 1)
    state = torch.zeros_like(b[:, 0], dtype=torch.float32 if both.dtype == torch.bfloat16 else both.dtype)
    out = torch.empty_like(b)
    for t in range(chunks) if grad is None else reversed(range(chunks)):
        out[:, t] = state.to(out.dtype)
        added = b[:, t] if grad is None else grad.reshape(b.shape)[:, t]
        step = a[:, t].to(state.dtype)
        removed = (step if grad is None else step.mT) @ state if width > value else 0.0
        state = d[:, t] * state + added - removed
    return out.reshape(*both.shape[:-1], value)


class ChannelProducts(torch.autograd.Function):
    """Causal query-key and key-key products within chunks where every key channel decays at its own rate.

    q, k and g (log decays summed from the chunk's start, falling) ``[M, H, C, D]``.  Returns ``[M, H, C, C]`` each:
    ``sum_d q_i k_j exp(g_i - g_j)`` for j <= i, and the same of k with k for j < i; zero elsewhere.  No exponent is
    ever positive.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(q, k, g)
        if q.is_cuda and channels is not None:
            return channels.products(q, k, g)
        kept = k[:, :, None] * ChannelProducts.decays(g)
        return (q[:, :, :, None] * kept).sum(-1), (k[:, :, :, None] * kept).sum(-1).tril(-1)

    @staticmethod
    def decays(g: Tensor) -> Tensor:
        """``exp(g_i - g_j)`` for j <= i, else 0: ``[M, H, C, C, D]``."""
        row = torch.arange(g.shape[2], device=g.device)
        seen = (row[:, None] >= row)[..., None]
        return torch.where(seen, g[:, :, :, None] - g[:, :, None], float("-inf")).exp()

    @staticmethod
    def backward(ctx: Any, of_qk: Tensor, of_kk: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, g = ctx.saved_tensors
        if q.is_cuda and channels is not None:
            return channels.products_backward(q, k, g, of_qk, of_kk)
        decays, of_kk = ChannelProducts.decays(g), of_kk.tril(-1)
        kept = k[:, :, None] * decays
        of_q, of_row = (torch.einsum("mhij,mhijd->mhid", x, kept) for x in (of_qk, of_kk))
        acting = of_qk[..., None] * q[:, :, :, None] + of_kk[..., None] * k[:, :, :, None]
        of_column = (acting * decays).sum(2)
        return of_q, of_row + of_column, q * of_q + k * (of_row - of_column)


def solve(inverse: Tensor, right: Tensor, to_end: Tensor) -> tuple[Tensor, Tensor]:
    """New values and keys ``U | W`` ``[M, H, C, V + D]`` and the scan's ``B | A`` ``[M, H, D, V + D]``."""
    solved = inverse @ right
    return solved, to_end.mT @ solved


def read(solved: Tensor, states: Tensor, products: Tensor, from_start: Tensor) -> Tensor:
    """Outputs of all tokens, flat ``[N, H, V]``, from the states before each chunk."""
    value = states.shape[-1]
    new, keys = solved[..., :value], solved[..., value:]
    out = from_start @ states + products @ (new - keys @ states)
    return out.transpose(1, 2).reshape(-1, out.shape[1], value)
