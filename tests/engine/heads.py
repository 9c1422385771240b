"""Random heads for multi-token prediction, and what their definition says in float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.nn import functional as F

from holdover.arch.registry import layout_from_config
from holdover.engine.hf.host import HostModel
from holdover.engine.hf.mtp import MTPHead, with_head
from tests.engine.harness import _build, _unmodified

# layers of every row whose shapes the head takes: attention, and experts where there are any
_ATTENTION, _MLP = "model.layers.2.", "model.layers.1.mlp."
_NORMS = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")


def head_tensors(weights: dict[str, torch.Tensor], seed: int = 5) -> dict[str, torch.Tensor]:
    """A random head by its names below ``mtp.``, of the shapes and in the form that a model's own tensors have."""
    draw = torch.Generator().manual_seed(seed)
    shapes = {"fc.weight": (64, 128), **{f"{name}.weight": (64,) for name in _NORMS}}
    for name, tensor in weights.items():
        if name.startswith(_ATTENTION) and ".mlp." not in name:
            shapes["layers.0." + name.removeprefix(_ATTENTION)] = tuple(tensor.shape)
        if name.startswith(_MLP):
            shapes["layers.0.mlp." + name.removeprefix(_MLP)] = tuple(tensor.shape)
    return {
        name: (0.2 if len(shape) == 1 else 0.125) * torch.randn(shape, generator=draw) for name, shape in shapes.items()
    }


def attach(model: Any, tensors: dict[str, torch.Tensor]) -> HostModel:
    """The model as a host with this head."""
    host = HostModel(model, layout_from_config(model.config.to_dict(), dtype="float32"))
    host.attach(MTPHead(host, tensors), with_head(host.layout))
    return host


@cache
def host_with_head(name: str) -> HostModel:
    """The model of one row with a random head; every engine may share it."""
    return attach(_build(name), head_tensors(_unmodified(name).state_dict()))


@cache
@torch.inference_mode()
def final_hidden(name: str, tokens: tuple[int, ...]) -> torch.Tensor:
    """The unmodified model's final hidden states, uncached: ``[len(tokens), hidden]`` in float64."""
    model: Any = _unmodified(name)
    return model.model(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state[0].double()


class NaiveHead:
    """A row's random head from its definition, on all pairs at once, in float64."""

    def __init__(self, name: str) -> None:
        model: Any = _unmodified(name)
        self.config = model.config
        self.w = {key: value.double() for key, value in head_tensors(model.state_dict()).items()}
        self.embedding = model.model.embed_tokens.weight.detach().double()
        self.output = model.lm_head.weight.detach().double()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.output.mT

    def __call__(self, tokens: list[int], hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys and values ``[n, Hkv, D]`` and hidden states ``[n, hidden]`` of positions 0 to n - 1."""
        pair = [self._norm(self.embedding[tokens], "pre_fc_norm_embedding"), self._norm(hidden, "pre_fc_norm_hidden")]
        x = torch.cat(pair, dim=-1) @ self.w["fc.weight"].mT
        mixed, k, v = self._attention(self._norm(x, "layers.0.input_layernorm"))
        x = x + mixed
        x = x + self._mlp(self._norm(x, "layers.0.post_attention_layernorm"))
        return k, v, self._norm(x, "norm")

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        scale = (x.square().mean(-1, keepdim=True) + self.config.rms_norm_eps).rsqrt()
        return x * scale * (1 + self.w[f"{name}.weight"])

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.w[f"layers.0.{name}.weight"].mT

    def _attention(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        n, d = len(x), self.config.head_dim
        q, gate = self._linear(x, "self_attn.q_proj").view(n, -1, 2 * d).chunk(2, dim=-1)
        k, v = (self._linear(x, f"self_attn.{part}_proj").view(n, -1, d) for part in "kv")
        q, k = (_rotate(self._norm(y, f"layers.0.self_attn.{part}_norm"), d // 4) for y, part in ((q, "q"), (k, "k")))
        groups = q.shape[1] // k.shape[1]
        scores = torch.einsum("thd,shd->hts", q, k.repeat_interleave(groups, 1)) * d**-0.5
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
        out = torch.einsum("hts,shd->thd", scores.softmax(-1), v.repeat_interleave(groups, 1))
        return self._linear((out * gate.sigmoid()).flatten(1), "self_attn.o_proj"), k, v

    def _mlp(self, x: torch.Tensor) -> torch.Tensor:
        if "layers.0.mlp.gate.weight" not in self.w:
            return self._gated(x, *(self.w[f"layers.0.mlp.{part}_proj.weight"] for part in ("gate", "up", "down")))
        weights, chosen = self._linear(x, "mlp.gate").softmax(-1).topk(self.config.num_experts_per_tok)
        weights = weights / weights.sum(-1, keepdim=True)
        shared = (self.w[f"layers.0.mlp.shared_expert.{part}_proj.weight"] for part in ("gate", "up", "down"))
        out = self._linear(x, "mlp.shared_expert_gate").sigmoid() * self._gated(x, *shared)
        by_expert = torch.zeros(len(x), self.config.num_experts, dtype=x.dtype).scatter(1, chosen, weights)
        experts = (self.w[f"layers.0.mlp.experts.{part}_proj"] for part in ("gate_up", "down"))
        for weight, gate_up, down in zip(by_expert.mT, *experts, strict=True):
            out += weight.unsqueeze(1) * self._gated(x, *gate_up.chunk(2), down)
        return out

    @staticmethod
    def _gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return (F.silu(x @ gate.mT) * (x @ up.mT)) @ down.mT


def _rotate(x: torch.Tensor, dims: int) -> torch.Tensor:
    """Rotary embedding of the first ``dims`` of ``x [n, H, D]``, base 10000, in halves."""
    rates = 10000.0 ** -(torch.arange(0, dims, 2, dtype=torch.float64) / dims)
    angles = (torch.arange(len(x), dtype=torch.float64)[:, None] * rates).unsqueeze(1)
    a, b, rest = x.split([dims // 2, dims // 2, x.shape[-1] - dims], dim=-1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin(), rest], dim=-1)
