"""Qwen3.5 and Qwen3.6: gated delta rule with grouped value heads."""

from __future__ import annotations

import torch
from torch import nn

from holdover.engine.hf.mixers.base import JoinedLinear, Mixer, conv_weight
from holdover.engine.step import Step
from holdover.ops.norm import gated_rms_norm
from holdover.ops.recurrence.gates import softplus_gate
from holdover.ops.recurrence.gdn import torch as gdn


class Qwen35Mixer(Mixer):
    """`Qwen3_5GatedDeltaNet` and its MoE twin."""

    def __init__(self, module: nn.Module, layer: int) -> None:
        super().__init__(module, layer)
        m = self.module
        self.conv_weight = conv_weight(m.conv1d)
        self.project = JoinedLinear([m.in_proj_qkv, m.in_proj_z, m.in_proj_b, m.in_proj_a])

    def mix(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Mix ``x [B, T, hidden]`` along time."""
        m = self.module
        batch, length, _ = x.shape
        qkv, z, b, a = self.project(x)
        qkv = step.convolve(self.layer, qkv, self.conv_weight, m.conv1d.bias, m.activation)
        q, k, v = qkv.split([m.key_dim, m.key_dim, m.value_dim], dim=-1)
        log_decay = softplus_gate(a, m.A_log, m.dt_bias)
        if step.tap is not None:
            step.tap(self.layer, "log_decay", log_decay)
        out = step.recur(
            self.layer,
            gdn,
            {},
            q=q.unflatten(-1, (m.num_k_heads, m.head_k_dim)),
            k=k.unflatten(-1, (m.num_k_heads, m.head_k_dim)),
            v=v.unflatten(-1, (m.num_v_heads, m.head_v_dim)),
            log_decay=log_decay,
            beta=b.sigmoid(),
        )
        out = gated_rms_norm(out, z.unflatten(-1, out.shape[2:]), m.norm.weight, m.norm.variance_epsilon)
        projected: torch.Tensor = m.out_proj(out.view(batch, length, -1))
        return projected
