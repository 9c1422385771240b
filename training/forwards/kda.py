"""Kimi Delta Attention (Kimi-Linear): the delta rule with a decay per key channel, and the model's training forward.

Shapes as in ``recurrence.py``.  The chunked form is the gated delta rule's; only the products within a chunk differ,
since a decay per channel does not factor out of them (``recurrence.ChannelProducts``).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from training.forwards.common import Batch, Forward, attend, gated_weights, mlp, norm
from training.recurrence import (
    CHUNK,
    ChannelProducts,
    ChunkScan,
    Convolution,
    UnitLowerInverse,
    chunked,
    flat,
    l2norm,
    read,
    solve,
)


def naive_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """One token at a time; the definition.

    q, k and g (log decay) ``[B, T, H, D]``, v ``[B, T, H, V]``, beta ``[B, T, H]``; returns ``[B, T, H, V]``.
    """
    q, k = l2norm(q) * q.shape[-1] ** -0.5, l2norm(k)
    state = v.new_zeros(*v.shape[:1], *k.shape[2:], v.shape[-1])
    out = []
    for t in range(v.shape[1]):
        state = state * g[:, t].exp()[..., None]
        error = (v[:, t] - torch.einsum("bhd,bhdv->bhv", k[:, t], state)) * beta[:, t, :, None]
        state = state + k[:, t, :, :, None] * error[:, :, None, :]
        out.append(torch.einsum("bhd,bhdv->bhv", q[:, t], state))
    return torch.stack(out, 1)


def normalise(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """Flat tokens as chunks: queries and keys of unit length, decays summed from the chunk's start, all fp32."""
    q, k = chunked(l2norm(q.float()) * q.shape[-1] ** -0.5), chunked(l2norm(k.float()))
    # contiguous for the kernels of the products, which otherwise copy
    q, k, g = q.contiguous(), k.contiguous(), chunked(g.float()).cumsum(2).contiguous()
    return q, k, chunked(v.float()), g, chunked(beta.float())


def systems(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, qk: Tensor, kk: Tensor, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """As ``gdn.prepare`` returns, from ``normalise``'s chunks and their products; chunk decays ``[M, H, D]``."""
    beta, grown, last = beta[..., None], g.exp(), g[:, :, -1:]
    right = torch.cat([v * beta, k * grown * beta], -1)
    to_end = k * (last - g).exp()
    parts = (kk * beta, qk, right, to_end, q * grown)
    return *(part.to(dtype) for part in parts), last.exp().squeeze(2)


def chunked_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """As ``naive_rule``, chunked, any length; products in v's dtype, state and decays in fp32 or better."""
    (batch, length), dtype = v.shape[:2], v.dtype
    q, k, v, g, beta = normalise(*(flat(x) for x in (q, k, v, g, beta)))
    lower, products, right, to_end, start, decay = systems(q, k, v, g, beta, *ChannelProducts.apply(q, k, g), dtype)
    solved, both = solve(UnitLowerInverse.apply(lower), right, to_end)
    states = ChunkScan.apply(decay, both, v.shape[-1], len(decay) // batch)
    return read(solved, states, products, start).unflatten(0, (batch, -1))[:, :length]


def _project(x: Tensor, weights: tuple[Tensor, ...], eps: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Inputs of the convolution ``[N, 3·H·D]``, log decays ``[N, H, D]``, write strengths ``[N, H]``, output gate."""
    scale, q, k, v, f_a, f_b, dt_bias, a_log, b, g_a, g_b = weights
    h = norm(x, scale, eps).to(dtype)
    mixed = F.linear(h, torch.cat([q, k, v]).to(dtype))
    step = F.softplus(F.linear(F.linear(h, f_a.to(dtype)), f_b.to(dtype)).float() + dt_bias)
    decay = -a_log.exp().view(-1, 1) * step.unflatten(-1, (a_log.numel(), -1))
    beta = F.linear(h, b.to(dtype)).float().sigmoid()
    return mixed, decay, beta, F.linear(F.linear(h, g_a.to(dtype)), g_b.to(dtype))


def _normalise(mixed: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    q, k, v = (part.view_as(decay) for part in mixed.chunk(3, -1))
    return normalise(q, k, v, decay, beta)


def _out(
    x: Tensor, solved: Tensor, states: Tensor, products: Tensor, start: Tensor, gate: Tensor,
    weights: tuple[Tensor, ...], after: tuple[Tensor, ...], eps: float, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    scale, out = weights
    o = norm(read(solved, states, products, start), scale, eps)
    o = o * gate.float().view_as(o).sigmoid()
    return mlp(x + F.linear(o.flatten(1).to(dtype), out.to(dtype)), after, eps, 1.0, dtype)


def _attention_in(
    x: Tensor, weights: tuple[Tensor, ...], sizes: tuple[int, int, int], eps: tuple[float, float], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Latent attention, expanded: a head's key is its own part and one that all heads share."""
    scale, wq, kv_a, latent_scale, kv_b = weights
    rank, own, shared = sizes
    h = norm(x, scale, eps[0]).to(dtype)
    q = F.linear(h, wq.to(dtype)).unflatten(-1, (-1, own + shared))
    latent, common = F.linear(h, kv_a.to(dtype)).split([rank, shared], -1)
    latent = norm(latent, latent_scale, eps[1]).to(dtype)
    expanded = F.linear(latent, kv_b.to(dtype)).unflatten(-1, (q.shape[1], -1))
    k, v = expanded.split([own, expanded.shape[-1] - own], -1)
    return q, torch.cat([k, common[:, None].expand(-1, q.shape[1], -1)], -1), v


class KDAForward(Forward):
    """Kimi-Linear (dense): channel-wise delta rule, latent attention without positions."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype = torch.float32, compiled: bool = False) -> None:
        super().__init__(model, dtype, compiled)
        c = model.config
        self.latent = (c.kv_lora_rank, c.qk_nope_head_dim, c.qk_rope_head_dim)
        self.project, self.normalise, self.systems = self.piece(_project), self.piece(_normalise), self.piece(systems)
        self.solve, self.out, self.attention_in = self.piece(solve), self.piece(_out), self.piece(_attention_in)

    def recurrent(self, x: Tensor, layer: nn.Module, batch: Batch) -> Tensor:
        a, eps, dtype = layer.self_attn, self.eps, self.dtype
        gate = a.forget_gate
        first = (
            layer.input_layernorm.weight, a.q_proj.weight, a.k_proj.weight, a.v_proj.weight, gate.f_a_proj.weight,
            gate.f_b_proj.weight, gate.dt_bias, gate.A_log, a.b_proj.weight, a.g_a_proj.weight, a.g_b_proj.weight,
        )  # fmt: skip
        mixed, decay, beta, z = self.project(x, first, eps, dtype)
        mixed = Convolution.apply(mixed, a.conv1d.weight.squeeze(1), None, batch.length)
        q, k, v, g, beta = self.normalise(mixed, decay, beta)
        qk, kk = ChannelProducts.apply(q, k, g)
        lower, products, right, to_end, start, decay = self.systems(q, k, v, g, beta, qk, kk, dtype)
        solved, both = self.solve(UnitLowerInverse.apply(lower), right, to_end)
        states = ChunkScan.apply(decay, both, v.shape[-1], batch.length // CHUNK)
        weights = (a.o_norm.weight, a.o_proj.weight)
        return self.out(x, solved, states, products, start, z, weights, gated_weights(layer), eps, dtype)

    def attention(self, x: Tensor, layer: nn.Module, batch: Batch) -> Tensor:
        s, dtype = layer.self_attn, self.dtype
        first = (
            layer.input_layernorm.weight, s.q_proj.weight, s.kv_a_proj_with_mqa.weight, s.kv_a_layernorm.weight,
            s.kv_b_proj.weight,
        )  # fmt: skip
        q, k, v = self.attention_in(x, first, self.latent, (self.eps, s.kv_a_layernorm.variance_epsilon), dtype)
        o = attend(q, k, v, batch.window, q.shape[-1] ** -0.5)
        return self.attention_out(x, o, s.o_proj.weight, gated_weights(layer), self.eps, 1.0, dtype)
