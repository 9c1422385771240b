"""The gated delta rule, naive and chunked, for training.

Shapes: ``N`` tokens in all (batch × length, flat), ``C = 64`` tokens a chunk, ``M = N / C`` chunks, ``HK`` key heads,
``H`` value heads (a multiple of HK), head dimension ``D`` (keys) and ``V`` (values).  A head's state is ``[D, V]``.

The chunked form writes the step over one chunk as ``S' = d·S + B - A·S`` with ``d`` the chunk's decay, so that all the
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

    from training import kernels
except ImportError:  # no triton on this machine: the torch forms below are used
    kernels = None  # type: ignore[assignment]

CHUNK = 64


def l2norm(x: Tensor) -> Tensor:
    """Unit length over the last dimension, as Transformers does it."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def naive_gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """One token at a time; the definition.

    q, k ``[B, T, HK, D]``, v ``[B, T, H, V]``, g (log decay) and beta ``[B, T, H]``; returns ``[B, T, H, V]``.
    """
    groups = v.shape[2] // q.shape[2]
    q = l2norm(q).repeat_interleave(groups, 2) * q.shape[-1] ** -0.5
    k = l2norm(k).repeat_interleave(groups, 2)
    state = v.new_zeros(v.shape[0], v.shape[2], q.shape[-1], v.shape[-1])
    out = []
    for t in range(v.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        error = (v[:, t] - torch.einsum("bhd,bhdv->bhv", k[:, t], state)) * beta[:, t, :, None]
        state = state + k[:, t, :, :, None] * error[:, :, None, :]
        out.append(torch.einsum("bhd,bhdv->bhv", q[:, t], state))
    return torch.stack(out, 1)


def _shift(x: Tensor, back: int, length: int) -> Tensor:
    """Row t - back in place of row t of flat sequences ``[N, W]``, 0 before their starts; ``back`` may be negative."""
    rows = x.unflatten(0, (-1, length))
    moved = F.pad(rows, (0, 0, back, 0))[:, :length] if back >= 0 else F.pad(rows, (0, 0, 0, -back))[:, -back:]
    return moved.flatten(0, 1)


class Convolution(torch.autograd.Function):
    """Causal depthwise convolution, then SiLU, of flat sequences of ``length``: x ``[N, W]``, weight ``[W, K]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, length: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.length = length
        if x.is_cuda and kernels is not None:
            return kernels.convolve(x, weight, length)
        return F.silu(Convolution.before(x, weight, length))

    @staticmethod
    def before(x: Tensor, weight: Tensor, length: int) -> Tensor:
        """The convolution without its activation."""
        return torch.stack([_shift(x, back, length) * weight[:, -1 - back] for back in range(weight.shape[1])]).sum(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        if x.is_cuda and kernels is not None:
            return *kernels.convolve_backward(x, weight, grad, ctx.length), None
        total = Convolution.before(x, weight, ctx.length)
        gate = total.sigmoid()
        change = grad * gate * (1 + total * (1 - gate))
        taps = range(weight.shape[1])
        out = torch.stack([_shift(change, -back, ctx.length) * weight[:, -1 - back] for back in taps]).sum(0)
        of_weight = torch.stack([(change * _shift(x, back, ctx.length)).sum(0) for back in reversed(taps)], -1)
        return out, of_weight, None


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

    decay ``[M, H]`` fp32, both ``[M, H, D, V + D]`` holding ``B | A``; ``chunks`` is the number of chunks a sequence.
    Returns ``[M, H, D, V]`` in ``both``'s dtype; the running state is fp32.
    """

    @staticmethod
    def forward(ctx: Any, decay: Tensor, both: Tensor, chunks: int) -> Tensor:
        if both.is_cuda and kernels is not None:
            states = kernels.scan_forward(decay, both, chunks)
        else:
            states = _scan(decay, both, chunks, None)
        ctx.save_for_backward(decay, both, states)
        ctx.chunks = chunks
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        decay, both, states = ctx.saved_tensors
        if both.is_cuda and kernels is not None:
            after = kernels.scan_backward(decay, both, grad.contiguous(), ctx.chunks)
        else:
            after = _scan(decay, both, ctx.chunks, grad)
        grad_decay = (after.float() * states.float()).sum((-1, -2))
        return grad_decay, torch.cat([after, -(after @ states.mT)], -1), None


def _scan(decay: Tensor, both: Tensor, chunks: int, grad: Tensor | None) -> Tensor:
    """The scan in torch: forward (``grad`` None), or backward, giving the gradient of the state after each chunk."""
    heads, dim, width = both.shape[1:]
    value = width - dim
    b, a = both.reshape(-1, chunks, heads, dim, width).split([value, dim], -1)
    d = decay.reshape(-1, chunks, heads, 1, 1)
    state = torch.zeros_like(b[:, 0], dtype=torch.float32 if both.dtype == torch.bfloat16 else both.dtype)
    out = torch.empty_like(b)
    for t in range(chunks) if grad is None else reversed(range(chunks)):
        out[:, t] = state.to(out.dtype)
        step = a[:, t].to(state.dtype)
        if grad is None:
            state = d[:, t] * state + b[:, t] - step @ state
        else:
            state = d[:, t] * state + grad.reshape(b.shape)[:, t] - step.mT @ state
    return out.reshape(*both.shape[:-1], value)


def prepare(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Everything that needs no state, flat tokens in, chunks out.

    q, k ``[N, HK, D]``, v ``[N, H, V]``, g and beta ``[N, H]`` fp32.  Returns the system's strictly lower part and the
    causal query-key products ``[M, H, C, C]``, the system's right sides ``[M, H, C, V + D]``, keys decayed to the
    chunk's end and queries decayed from its start ``[M, H, C, D]`` (all ``dtype``), and the chunk decays ``[M, H]``.
    """
    key_heads, dim = q.shape[1:]
    heads = v.shape[1]
    groups = heads // key_heads

    def chunked(x: Tensor) -> Tensor:  # [N, H, ...] -> [M, H, C, ...]
        return x.reshape(-1, CHUNK, *x.shape[1:]).transpose(1, 2)

    q, k = chunked(l2norm(q.float()) * dim**-0.5), chunked(l2norm(k.float()))
    v, g, beta = chunked(v.float()), chunked(g.float()).cumsum(-1), chunked(beta.float())
    kt = k.to(dtype).mT
    kk = (k.to(dtype) @ kt)[:, :, None].expand(-1, -1, groups, -1, -1).reshape(-1, heads, CHUNK, CHUNK)
    qk = (q.to(dtype) @ kt)[:, :, None].expand(-1, -1, groups, -1, -1).reshape(-1, heads, CHUNK, CHUNK)
    row = torch.arange(CHUNK, device=q.device)
    causal = row[:, None] >= row[None, :]
    decay = torch.where(causal, g[..., :, None] - g[..., None, :], float("-inf")).exp()
    lower = torch.where(row[:, None] > row[None, :], kk * decay * beta[..., None], 0.0)
    q, k = (x[:, :, None].expand(-1, -1, groups, -1, -1).reshape(-1, heads, CHUNK, dim) for x in (q, k))
    right = torch.cat([v * beta[..., None], k * (beta * g.exp())[..., None]], -1)
    last = g[..., -1:]
    to_end, from_start = k * (last - g).exp()[..., None], q * g.exp()[..., None]
    return (
        lower.to(dtype),
        (qk * decay).to(dtype),
        right.to(dtype),
        to_end.to(dtype),
        from_start.to(dtype),
        last.exp().squeeze(-1),
    )


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


def chunked_gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """As ``naive_gated_delta_rule``, chunked, any length; products in v's dtype, state and decays in fp32 or better."""
    batch, length = v.shape[:2]
    pad = -length % CHUNK
    q, k, v = (F.pad(x, (0, 0, 0, 0, 0, pad)).flatten(0, 1) for x in (q, k, v))
    g, beta = (F.pad(x, (0, 0, 0, pad)).flatten(0, 1) for x in (g, beta))
    lower, products, right, to_end, from_start, decay = prepare(q, k, v, g, beta, v.dtype)
    solved, both = solve(UnitLowerInverse.apply(lower), right, to_end)
    states = ChunkScan.apply(decay, both, (length + pad) // CHUNK)
    return read(solved, states, products, from_start).unflatten(0, (batch, -1))[:, :length]
