"""The training forward of the GDN model: Transformers' parameters, flat tokens, few kernels.

All tokens of a batch are one axis of constant size, whatever the sequences' length, so each piece is compiled once
and reused by all layers.  Only attention, the scan over chunks and the convolution know where sequences begin.
``tests/training`` compares this forward with Transformers' own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from training.recurrence import CHUNK, ChunkScan, Convolution, UnitLowerInverse, prepare, read, solve


class Batch(NamedTuple):
    """``length`` divides ``ids``' size; all tensors are flat ``[N]``; weight says how much each target counts."""

    ids: Tensor
    targets: Tensor
    weights: Tensor
    length: int


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Zero-centred RMS norm in fp32."""
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1.0 + weight)


def _mlp(x: Tensor, weights: tuple[Tensor, ...], eps: float, dtype: torch.dtype) -> Tensor:
    norm, gate, up, down = weights
    h = _norm(x, norm, eps).to(dtype)
    return x + F.linear(F.silu(F.linear(h, gate.to(dtype))) * F.linear(h, up.to(dtype)), down.to(dtype))


def _gdn_project(x: Tensor, weights: tuple[Tensor, ...], eps: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Inputs of the convolution ``[N, W]``, log decays, write strengths ``[N, H]`` fp32, output gate ``[N, H·V]``."""
    norm, qkv, z, b, a, a_log, dt_bias = weights
    h = _norm(x, norm, eps).to(dtype)
    decay = -a_log.exp() * F.softplus(F.linear(h, a.to(dtype)).float() + dt_bias)
    beta = F.linear(h, b.to(dtype)).float().sigmoid()
    return F.linear(h, qkv.to(dtype)), decay, beta, F.linear(h, z.to(dtype))


def _gdn_prepare(
    mixed: Tensor, decay: Tensor, beta: Tensor, sizes: tuple[int, ...], dtype: torch.dtype
) -> tuple[Tensor, ...]:
    key_heads, heads, dim, value = sizes
    q, k, v = mixed.split([key_heads * dim, key_heads * dim, heads * value], -1)
    q, k, v = q.unflatten(-1, (key_heads, dim)), k.unflatten(-1, (key_heads, dim)), v.unflatten(-1, (heads, value))
    return prepare(q, k, v, decay, beta, dtype)


def _gdn_out(
    x: Tensor, solved: Tensor, states: Tensor, products: Tensor, start: Tensor, z: Tensor,
    weights: tuple[Tensor, ...], mlp: tuple[Tensor, ...], eps: float, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    norm, out = weights
    o = read(solved, states, products, start).float()
    o = norm * (o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + eps)) * F.silu(z.float().view_as(o))
    return _mlp(x + F.linear(o.flatten(1).to(dtype), out.to(dtype)), mlp, eps, dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of the first dimensions: x ``[N, H, D]``, cos and sin ``[N, R]``."""
    cos, sin = cos[:, None], sin[:, None]
    turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    low, high = turned.chunk(2, -1)
    return torch.cat([turned * cos + torch.cat([-high, low], -1) * sin, rest], -1)


def _attention_in(
    x: Tensor, cos: Tensor, sin: Tensor, weights: tuple[Tensor, ...], dim: int, eps: float, dtype: torch.dtype
):
    norm, wq, wk, wv, q_norm, k_norm = weights
    h = _norm(x, norm, eps).to(dtype)
    q, gate = F.linear(h, wq.to(dtype)).unflatten(-1, (-1, 2 * dim)).chunk(2, -1)
    k, v = F.linear(h, wk.to(dtype)).unflatten(-1, (-1, dim)), F.linear(h, wv.to(dtype)).unflatten(-1, (-1, dim))
    q, k = _rotate(_norm(q, q_norm, eps), cos, sin), _rotate(_norm(k, k_norm, eps), cos, sin)
    groups = q.shape[1] // k.shape[1]
    return q.to(dtype), k.to(dtype).repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), gate


def _attention_out(
    x: Tensor, o: Tensor, gate: Tensor, out: Tensor, mlp: tuple[Tensor, ...], eps: float, dtype: torch.dtype
) -> Tensor:
    o = (o * gate.sigmoid()).flatten(1)
    return _mlp(x + F.linear(o, out.to(dtype)), mlp, eps, dtype)


def _head(x: Tensor, norm: Tensor, embedding: Tensor, targets: Tensor, weights: Tensor, eps: float, dtype: torch.dtype):
    """Weighted sum of the cross entropies, each token's cross entropy, and whether the target is the likeliest."""
    logits = F.linear(_norm(x, norm, eps).to(dtype), embedding.to(dtype)).float()
    losses = torch.logsumexp(logits, -1) - logits.gather(-1, targets[:, None]).squeeze(-1)
    with torch.no_grad():
        right = logits.argmax(-1) == targets
    return (losses * weights).sum(), losses.detach(), right


class Forward:
    """Callable ``(batch) -> (loss, losses [N], right [N])`` over a GDN model's own parameters."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype = torch.float32, compiled: bool = False) -> None:
        self.model, self.dtype, config = model, dtype, model.config
        self.eps, self.dim = config.rms_norm_eps, config.head_dim
        self.sizes = (
            config.linear_num_key_heads, config.linear_num_value_heads,
            config.linear_key_head_dim, config.linear_value_head_dim,
        )  # fmt: skip
        wrap: Callable = (lambda f: torch.compile(f, dynamic=False, fullgraph=True)) if compiled else (lambda f: f)
        self.gdn_project, self.gdn_prepare = wrap(_gdn_project), wrap(_gdn_prepare)
        self.gdn_out, self.solve = wrap(_gdn_out), wrap(solve)
        self.attention_in, self.attention_out, self.head = wrap(_attention_in), wrap(_attention_out), wrap(_head)

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        body, eps, dtype = self.model.model, self.eps, self.dtype
        if batch.length % CHUNK:
            raise ValueError(f"sequence length {batch.length} is not a multiple of {CHUNK}")
        position = torch.arange(batch.ids.numel(), device=batch.ids.device) % batch.length
        frequency = body.rotary_emb.inv_freq.to(position.device)
        angle = (position[:, None] * frequency).repeat(1, 2)
        cos, sin = angle.cos(), angle.sin()
        x = F.embedding(batch.ids, body.embed_tokens.weight)
        for kind, layer in zip(self.model.config.layer_types, body.layers, strict=True):
            m = layer.mlp
            mlp = (layer.post_attention_layernorm.weight, m.gate_proj.weight, m.up_proj.weight, m.down_proj.weight)
            if kind == "linear_attention":
                a = layer.linear_attn
                first = (
                    layer.input_layernorm.weight, a.in_proj_qkv.weight, a.in_proj_z.weight,
                    a.in_proj_b.weight, a.in_proj_a.weight, a.A_log, a.dt_bias,
                )  # fmt: skip
                mixed, gates, beta, z = self.gdn_project(x, first, eps, dtype)
                mixed = Convolution.apply(mixed, a.conv1d.weight.squeeze(1), batch.length)
                lower, products, right, to_end, start, decay = self.gdn_prepare(mixed, gates, beta, self.sizes, dtype)
                solved, both = self.solve(UnitLowerInverse.apply(lower), right, to_end)
                states = ChunkScan.apply(decay, both, batch.length // CHUNK)
                x = self.gdn_out(
                    x, solved, states, products, start, z, (a.norm.weight, a.out_proj.weight), mlp, eps, dtype
                )
            else:
                s = layer.self_attn
                first = (
                    layer.input_layernorm.weight, s.q_proj.weight, s.k_proj.weight, s.v_proj.weight,
                    s.q_norm.weight, s.k_norm.weight,
                )  # fmt: skip
                q, k, v, gate = self.attention_in(x, cos, sin, first, self.dim, eps, dtype)
                q, k, v = (t.unflatten(0, (-1, batch.length)).transpose(1, 2) for t in (q, k, v))
                o = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(0, 1)
                x = self.attention_out(x, o, gate, s.o_proj.weight, mlp, eps, dtype)
        return self.head(x, body.norm.weight, body.embed_tokens.weight, batch.targets, batch.weights, eps, dtype)


class HostForward:
    """The same call over any causal model's own forward: slower, for architectures without a fast one here."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype = torch.float32) -> None:
        self.model, self.dtype = model, dtype

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """As ``Forward``."""
        kind = batch.ids.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            logits = self.model(input_ids=batch.ids.view(-1, batch.length), use_cache=False).logits
        logits = logits.flatten(0, 1).float()
        losses = F.cross_entropy(logits, batch.targets, reduction="none")
        return (losses * batch.weights).sum(), losses.detach(), logits.argmax(-1) == batch.targets
