"""Gated DeltaNet (Qwen3.5): the gated delta rule, naive and chunked, and the model's training forward.

Shapes as in ``recurrence.py``; ``HK`` key heads, ``H`` a multiple of it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from training.forwards.common import Batch, Forward, attend, gated_weights, mlp, norm
from training.recurrence import CHUNK, ChunkScan, Convolution, UnitLowerInverse, chunked, flat, l2norm, read, solve


def naive_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
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


def prepare(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Everything that needs no state, flat tokens in, chunks out.

    q, k ``[N, HK, D]``, v ``[N, H, V]``, g and beta ``[N, H]`` fp32.  Returns the system's strictly lower part and the
    causal query-key products ``[M, H, C, C]``, the system's right sides ``[M, H, C, V + D]``, keys decayed to the
    chunk's end and queries decayed from its start ``[M, H, C, D]`` (all ``dtype``), and the chunk decays ``[M, H, 1]``.
    """
    key_heads, dim = q.shape[1:]
    heads = v.shape[1]
    groups = heads // key_heads
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
        last.exp(),
    )


def chunked_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """As ``naive_rule``, chunked, any length; products in v's dtype, state and decays in fp32 or better."""
    batch, length = v.shape[:2]
    q, k, v, g, beta = (flat(x) for x in (q, k, v, g, beta))
    lower, products, right, to_end, from_start, decay = prepare(q, k, v, g, beta, v.dtype)
    solved, both = solve(UnitLowerInverse.apply(lower), right, to_end)
    states = ChunkScan.apply(decay, both, v.shape[-1], len(decay) // batch)
    return read(solved, states, products, from_start).unflatten(0, (batch, -1))[:, :length]


def _project(x: Tensor, weights: tuple[Tensor, ...], eps: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Inputs of the convolution ``[N, W]``, log decays, write strengths ``[N, H]`` fp32, output gate ``[N, H·V]``."""
    scale, qkv, z, b, a, a_log, dt_bias = weights
    h = norm(x, 1.0 + scale, eps).to(dtype)
    decay = -a_log.exp() * F.softplus(F.linear(h, a.to(dtype)).float() + dt_bias)
    beta = F.linear(h, b.to(dtype)).float().sigmoid()
    return F.linear(h, qkv.to(dtype)), decay, beta, F.linear(h, z.to(dtype))


def _prepare(
    mixed: Tensor, decay: Tensor, beta: Tensor, sizes: tuple[int, ...], dtype: torch.dtype
) -> tuple[Tensor, ...]:
    key_heads, heads, dim, value = sizes
    q, k, v = mixed.split([key_heads * dim, key_heads * dim, heads * value], -1)
    q, k, v = q.unflatten(-1, (key_heads, dim)), k.unflatten(-1, (key_heads, dim)), v.unflatten(-1, (heads, value))
    return prepare(q, k, v, decay, beta, dtype)


def _out(
    x: Tensor, solved: Tensor, states: Tensor, products: Tensor, start: Tensor, z: Tensor,
    weights: tuple[Tensor, ...], after: tuple[Tensor, ...], eps: float, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    scale, out = weights
    o = norm(read(solved, states, products, start), scale, eps)
    o = o * F.silu(z.float().view_as(o))
    return mlp(x + F.linear(o.flatten(1).to(dtype), out.to(dtype)), after, eps, 1.0, dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of the first dimensions: x ``[N, H, D]``, cos and sin ``[N, R]``."""
    cos, sin = cos[:, None], sin[:, None]
    turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    low, high = turned.chunk(2, -1)
    return torch.cat([turned * cos + torch.cat([-high, low], -1) * sin, rest], -1)


def _attention_in(
    x: Tensor, cos: Tensor, sin: Tensor, weights: tuple[Tensor, ...], dim: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    scale, wq, wk, wv, q_scale, k_scale = weights
    h = norm(x, 1.0 + scale, eps).to(dtype)
    q, gate = F.linear(h, wq.to(dtype)).unflatten(-1, (-1, 2 * dim)).chunk(2, -1)
    k, v = F.linear(h, wk.to(dtype)).unflatten(-1, (-1, dim)), F.linear(h, wv.to(dtype)).unflatten(-1, (-1, dim))
    q, k = _rotate(norm(q, 1.0 + q_scale, eps), cos, sin), _rotate(norm(k, 1.0 + k_scale, eps), cos, sin)
    groups = q.shape[1] // k.shape[1]
    return q.to(dtype), k.to(dtype).repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), gate.sigmoid()


class GDNForward(Forward):
    """Qwen3.5 (dense): gated delta rule, gated rotary attention, zero-centred norms."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype = torch.float32, compiled: bool = False) -> None:
        super().__init__(model, dtype, compiled)
        c = model.config
        self.sizes = (
            c.linear_num_key_heads, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim,
        )  # fmt: skip
        self.project, self.prepare, self.solve = self.piece(_project), self.piece(_prepare), self.piece(solve)
        self.out, self.attention_in = self.piece(_out), self.piece(_attention_in)
        self.cos = self.sin = torch.empty(0)

    def final_scale(self) -> Tensor:
        return 1.0 + self.model.model.norm.weight

    def begin(self, batch: Batch) -> None:
        position = torch.arange(batch.ids.numel(), device=batch.ids.device) % batch.length
        frequency = self.model.model.rotary_emb.inv_freq.to(position.device)
        angle = (position[:, None] * frequency).repeat(1, 2)
        self.cos, self.sin = angle.cos(), angle.sin()

    def mlp_weights(self, layer: nn.Module) -> tuple[Tensor, ...]:
        scale, both, down = gated_weights(layer)
        return 1.0 + scale, both, down

    def recurrent(self, x: Tensor, layer: nn.Module, batch: Batch) -> Tensor:
        a, eps, dtype = layer.linear_attn, self.eps, self.dtype
        first = (
            layer.input_layernorm.weight, a.in_proj_qkv.weight, a.in_proj_z.weight, a.in_proj_b.weight,
            a.in_proj_a.weight, a.A_log, a.dt_bias,
        )  # fmt: skip
        mixed, decay, beta, z = self.project(x, first, eps, dtype)
        mixed = Convolution.apply(mixed, a.conv1d.weight.squeeze(1), None, batch.length)
        lower, products, right, to_end, start, decay = self.prepare(mixed, decay, beta, self.sizes, dtype)
        solved, both = self.solve(UnitLowerInverse.apply(lower), right, to_end)
        states = ChunkScan.apply(decay, both, self.sizes[-1], batch.length // CHUNK)
        weights = (a.norm.weight, a.out_proj.weight)
        return self.out(x, solved, states, products, start, z, weights, self.mlp_weights(layer), eps, dtype)

    def attention(self, x: Tensor, layer: nn.Module, batch: Batch) -> Tensor:
        s, eps, dtype, dim = layer.self_attn, self.eps, self.dtype, self.model.config.head_dim
        first = (
            layer.input_layernorm.weight, s.q_proj.weight, s.k_proj.weight, s.v_proj.weight, s.q_norm.weight,
            s.k_norm.weight,
        )  # fmt: skip
        q, k, v, gate = self.attention_in(x, self.cos, self.sin, first, dim, eps, dtype)
        o = attend(q, k, v, batch.window, dim**-0.5) * gate
        return self.attention_out(x, o, s.o_proj.weight, self.mlp_weights(layer), eps, 1.0, dtype)
