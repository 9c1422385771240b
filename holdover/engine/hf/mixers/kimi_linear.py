"""Kimi-Linear: delta rule with a decay per key channel (KDA)."""

from __future__ import annotations

import torch
from torch import nn

from holdover.engine.hf.mixers.base import JoinedLinear, Mixer, conv_weight
from holdover.engine.step import Step
from holdover.ops.norm import gated_rms_norm
from holdover.ops.recurrence.gates import softplus_gate
from holdover.ops.recurrence.kda import torch as kda


class KimiLinearMixer(Mixer):
    """`KimiLinearDeltaAttention`."""

    def __init__(self, module: nn.Module, layer: int) -> None:
        super().__init__(module, layer)
        m = self.module
        self.conv_weight = conv_weight(m.conv1d)
        self.project = JoinedLinear([m.q_proj, m.k_proj, m.v_proj, m.forget_gate.f_a_proj, m.b_proj, m.g_a_proj])
        self.qkv_width = 3 * m.qkv_dim
        # one rate per head over one bias per (head, key channel)
        self.a_log = m.forget_gate.A_log.view(m.num_heads, 1)
        self.dt_bias = m.forget_gate.dt_bias.view(m.num_heads, m.head_dim)

    def mix(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Mix ``x [B, T, hidden]`` along time."""
        m = self.module
        batch, length, _ = x.shape
        heads = (m.num_heads, m.head_dim)
        *_, f, b, g = parts = self.project(x)
        # q, k and v are neighbours in the joined output
        qkv = parts[0].as_strided((batch, length, self.qkv_width), parts[0].stride(), parts[0].storage_offset())
        qkv = step.convolve(self.layer, qkv, self.conv_weight, m.conv1d.bias, m.activation)
        q, k, v = (part.unflatten(-1, heads) for part in qkv.chunk(3, dim=-1))
        log_decay = softplus_gate(m.forget_gate.f_b_proj(f).unflatten(-1, heads), self.a_log, self.dt_bias)
        if step.tap is not None:
            step.tap(self.layer, "log_decay", log_decay)
        out = step.recur(self.layer, kda, {}, q=q, k=k, v=v, log_decay=log_decay, beta=b.sigmoid())
        gate = m.g_b_proj(g).unflatten(-1, heads)
        out = gated_rms_norm(out, gate, m.o_norm.weight, m.o_norm.variance_epsilon, torch.sigmoid)
        projected: torch.Tensor = m.o_proj(out.reshape(batch, length, -1))
        return projected
