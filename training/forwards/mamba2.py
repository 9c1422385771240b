"""Mamba-2 (Granite-4.0-H): the state space rule, naive and chunked, and the model's training forward.

Shapes as in ``recurrence.py`` with D the state size and V the head dimension; ``G`` groups of heads share B and C.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from training.forwards.common import Batch, Forward, attend, mlp, norm
from training.recurrence import CHUNK, ChunkScan, Convolution, chunked, flat


def naive_rule(x: Tensor, b: Tensor, c: Tensor, step: Tensor, rate: Tensor) -> Tensor:
    """One token at a time, without the skip; the definition.

    x ``[B, T, H, V]``, b and c ``[B, T, G, D]``, step (after softplus) ``[B, T, H]``, rate (negative) ``[H]``; returns
    ``[B, T, H, V]``.
    """
    b, c = (part.repeat_interleave(x.shape[2] // part.shape[2], 2) for part in (b, c))
    state = x.new_zeros(*x.shape[:1], *b.shape[2:], x.shape[-1])
    out = []
    for t in range(x.shape[1]):
        added = b[:, t, :, :, None] * (x[:, t] * step[:, t, :, None])[:, :, None]
        state = state * (step[:, t] * rate).exp()[..., None, None] + added
        out.append(torch.einsum("bhd,bhdv->bhv", c[:, t], state))
    return torch.stack(out, 1)


def prepare(x: Tensor, b: Tensor, c: Tensor, step: Tensor, rate: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Everything that needs no state, flat tokens in, chunks out.

    Returns the outputs within chunks ``[M, H, C, V]``, what each chunk adds to the state ``[M, H, D, V]`` and the
    queries ``[M, G, C, D]``, all in ``dtype``, the decays from the chunk's start ``[M, H, C]`` and of the whole chunk
    ``[M, H, 1]``.
    """
    groups, heads = b.shape[1], x.shape[1]
    b, c = chunked(b).to(dtype), chunked(c).to(dtype)
    g = chunked(step * rate).cumsum(-1)
    x = chunked(x.float() * step[..., None])
    row = torch.arange(CHUNK, device=x.device)
    decay = torch.where(row[:, None] >= row, g[..., :, None] - g[..., None, :], float("-inf")).exp()
    products = (c @ b.mT).repeat_interleave(heads // groups, 1) * decay
    inner = products.to(dtype) @ x.to(dtype)
    last = g[..., -1:]
    ending = (x * (last - g).exp()[..., None]).to(dtype)
    # one product a group: its heads stand side by side
    ending = ending.unflatten(1, (groups, -1)).transpose(2, 3).flatten(3)
    added = (b.mT @ ending).unflatten(-1, (heads // groups, -1)).transpose(2, 3).flatten(1, 2)
    return inner, added.contiguous(), c, g.exp(), last.exp()


def read(inner: Tensor, states: Tensor, c: Tensor, grown: Tensor) -> Tensor:
    """Outputs of all tokens, flat ``[N, H, V]`` fp32, from the states before each chunk."""
    groups = c.shape[1]
    side = states.unflatten(1, (groups, -1)).transpose(2, 3).flatten(3)
    outer = (c @ side).float().unflatten(-1, (states.shape[1] // groups, -1)).transpose(2, 3).flatten(1, 2)
    return (inner + outer * grown[..., None]).transpose(1, 2).reshape(-1, inner.shape[1], inner.shape[-1])


def chunked_rule(x: Tensor, b: Tensor, c: Tensor, step: Tensor, rate: Tensor) -> Tensor:
    """As ``naive_rule``, chunked, any length; products in x's dtype, state and decays in fp32 or better."""
    batch, length = x.shape[:2]
    x, b, c, step = (flat(part) for part in (x, b, c, step))
    inner, added, c, grown, decay = prepare(x, b, c, step, rate, x.dtype)
    states = ChunkScan.apply(decay, added, x.shape[-1], len(decay) // batch)
    return read(inner, states, c, grown).unflatten(0, (batch, -1))[:, :length]


def _project(
    x: Tensor, weights: tuple[Tensor, ...], width: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Output gate ``[N, width]``, inputs of the convolution, steps ``[N, H]`` fp32."""
    scale, into, dt_bias = weights
    heads = dt_bias.numel()
    both = F.linear(norm(x, scale, eps).to(dtype), into.to(dtype))
    gate, mixed, step = both.split([width, both.shape[-1] - width - heads, heads], -1)
    return gate, mixed, F.softplus(step.float() + dt_bias)


def _prepare(
    mixed: Tensor, step: Tensor, a_log: Tensor, sizes: tuple[int, int, int], dtype: torch.dtype
) -> tuple[Tensor, ...]:
    groups, dim, width = sizes
    x, b, c = mixed.split([width, groups * dim, groups * dim], -1)
    x = x.unflatten(-1, (a_log.numel(), -1))
    b, c = b.unflatten(-1, (groups, dim)), c.unflatten(-1, (groups, dim))
    return *prepare(x, b, c, step, -a_log.exp(), dtype), x


def _out(
    stream: Tensor, x: Tensor, inner: Tensor, states: Tensor, c: Tensor, grown: Tensor, gate: Tensor,
    weights: tuple[Tensor, ...], after: tuple[Tensor, ...], eps: float, residual: float, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    scale, skip, out = weights
    o = read(inner, states, c, grown) + skip[:, None] * x.float()
    o = o.flatten(1) * F.silu(gate.float())
    # the norm is over a group's channels
    o = norm(o.unflatten(-1, (c.shape[1], -1)), scale.view(c.shape[1], -1), eps).flatten(1)
    return mlp(stream + residual * F.linear(o.to(dtype), out.to(dtype)), after, eps, residual, dtype)


def _attention_in(
    x: Tensor, weights: tuple[Tensor, ...], dim: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    scale, wq, wk, wv = weights
    h = norm(x, scale, eps).to(dtype)
    q, k, v = (F.linear(h, w.to(dtype)).unflatten(-1, (-1, dim)) for w in (wq, wk, wv))
    groups = q.shape[1] // k.shape[1]
    return q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)


class Mamba2Forward(Forward):
    """Granite-4.0-H (dense): Mamba-2, attention without positions, multipliers."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype = torch.float32, compiled: bool = False) -> None:
        super().__init__(model, dtype, compiled)
        c = model.config
        if c.time_step_limit != (0.0, float("inf")):
            raise ValueError(f"steps limited to {c.time_step_limit} are not trained here; use (0, inf)")
        self.residual, self.embedding, self.logits = c.residual_multiplier, c.embedding_multiplier, c.logits_scaling
        self.sizes = (c.mamba_n_groups, c.mamba_d_state, c.mamba_n_heads * c.mamba_d_head)
        self.project, self.prepare = self.piece(_project), self.piece(_prepare)
        self.out, self.attention_in = self.piece(_out), self.piece(_attention_in)

    def mlp_weights(self, layer: nn.Module) -> tuple[Tensor, ...]:
        m = layer.shared_mlp
        return layer.post_attention_layernorm.weight, m.input_linear.weight, m.output_linear.weight

    def recurrent(self, x: Tensor, layer: nn.Module, batch: Batch) -> Tensor:
        a, eps, dtype, width = layer.mamba, self.eps, self.dtype, self.sizes[-1]
        first = (layer.input_layernorm.weight, a.in_proj.weight, a.dt_bias)
        gate, mixed, step = self.project(x, first, width, eps, dtype)
        mixed = Convolution.apply(mixed, a.conv1d.weight.squeeze(1), a.conv1d.bias, batch.length)
        inner, added, c, grown, decay, values = self.prepare(mixed, step, a.A_log, self.sizes, dtype)
        states = ChunkScan.apply(decay, added, values.shape[-1], batch.length // CHUNK)
        weights, after = (a.norm.weight, a.D, a.out_proj.weight), self.mlp_weights(layer)
        return self.out(x, values, inner, states, c, grown, gate, weights, after, eps, self.residual, dtype)

    def attention(self, x: Tensor, layer: nn.Module, batch: Batch) -> Tensor:
        s, eps, dtype = layer.self_attn, self.eps, self.dtype
        first = (layer.input_layernorm.weight, s.q_proj.weight, s.k_proj.weight, s.v_proj.weight)
        q, k, v = self.attention_in(x, first, s.head_dim, eps, dtype)
        o = attend(q, k, v, batch.window, s.scaling)
        return self.attention_out(x, o, s.o_proj.weight, self.mlp_weights(layer), eps, self.residual, dtype)
