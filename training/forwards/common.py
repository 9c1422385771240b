"""What the training forwards share: batches, norms, MLPs, attention, the loss; and the walk over a model's layers.

All tokens of a batch are one axis of constant size, whatever the sequences' length, so each piece is compiled once
and reused by all layers.  Only attention, the scan over chunks and the convolution know where sequences begin.
``tests/training`` compares the forwards with Transformers' own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from training.recurrence import CHUNK


class Batch(NamedTuple):
    """Tensors are flat ``[N]``; weight says how much each target counts.

    ``length``, a multiple of 64, divides N.  ``window`` divides ``length``: attention sees its own block of that many
    tokens and no further.
    """

    ids: Tensor
    targets: Tensor
    weights: Tensor
    length: int
    window: int


def norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """RMS norm in fp32."""
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * scale


def mlp(x: Tensor, weights: tuple[Tensor, ...], eps: float, residual: float, dtype: torch.dtype) -> Tensor:
    """``x`` and what the gated MLP adds; weights are its norm's, gate and up as one matrix, down."""
    scale, both, down = weights
    gate, up = F.linear(norm(x, scale, eps).to(dtype), both.to(dtype)).chunk(2, -1)
    return x + residual * F.linear(F.silu(gate) * up, down.to(dtype))


def attend(q: Tensor, k: Tensor, v: Tensor, window: int, scale: float) -> Tensor:
    """Causal attention within blocks of ``window`` tokens; q, k, v and the result flat ``[N, H, D]``."""
    q, k, v = (x.unflatten(0, (-1, window)).transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    return out.transpose(1, 2).flatten(0, 1)


def attention_out(
    x: Tensor, o: Tensor, out: Tensor, weights: tuple[Tensor, ...], eps: float, residual: float, dtype: torch.dtype
) -> Tensor:
    """After attention: its output projection, then the MLP."""
    return mlp(x + residual * F.linear(o.flatten(1).to(dtype), out.to(dtype)), weights, eps, residual, dtype)


def head(
    x: Tensor, scale: Tensor, out: Tensor, targets: Tensor, weights: Tensor, eps: float, divisor: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Weighted sum of the cross entropies, each token's cross entropy, and whether the target is the likeliest."""
    logits = F.linear(norm(x, scale, eps).to(dtype), out.to(dtype)).float() / divisor
    losses = torch.logsumexp(logits, -1) - logits.gather(-1, targets[:, None]).squeeze(-1)
    with torch.no_grad():
        right = logits.argmax(-1) == targets
    return (losses * weights).sum(), losses.detach(), right


def gated_weights(layer: nn.Module) -> tuple[Tensor, ...]:
    """A layer's weights for ``mlp``, where gate and up are modules of their own."""
    both = torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight])
    return layer.post_attention_layernorm.weight, both, layer.mlp.down_proj.weight


class Forward(ABC):
    """Callable ``(batch) -> (loss, losses [N], right [N])`` over a model's own parameters."""

    residual = 1.0  # what is added to the stream counts this much
    embedding = 1.0
    logits = 1.0  # their divisor

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype = torch.float32, compiled: bool = False) -> None:
        self.model, self.dtype, self.compiled = model, dtype, compiled
        self.eps = model.config.rms_norm_eps
        self.attention_out, self.head = self.piece(attention_out), self.piece(head)

    def piece(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, dynamic=False, fullgraph=True) if self.compiled else function

    def final_scale(self) -> Tensor:
        return self.model.model.norm.weight

    def begin(self, batch: Batch) -> None:  # noqa: B027 (most models have no positions)
        """Prepare what depends on positions."""

    @abstractmethod
    def recurrent(self, x: Tensor, layer: nn.Module, batch: Batch) -> Tensor:
        """The stream ``[N, hidden]`` after a recurrent layer."""

    @abstractmethod
    def attention(self, x: Tensor, layer: nn.Module, batch: Batch) -> Tensor:
        """The stream after an attention layer."""

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        body = self.model.model
        if batch.length % CHUNK:
            raise ValueError(f"sequence length {batch.length} is not a multiple of {CHUNK}")
        self.begin(batch)
        x = self.embedding * F.embedding(batch.ids, body.embed_tokens.weight)
        for kind, layer in zip(self.model.config.layer_types, body.layers, strict=True):
            step = self.recurrent if kind == "linear_attention" else self.attention
            x = step(x, layer, batch)
        out = self.model.get_output_embeddings().weight
        return self.head(x, self.final_scale(), out, batch.targets, batch.weights, self.eps, self.logits, self.dtype)
