"""Kimi delta attention: the delta rule with a decay per key channel, as every architecture with it computes it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from holdover.arch.layout import RecurrentLayer
from holdover.engine.hf.mixers.base import JoinedLinear, Mixer, Total, conv_weight, is_compilable
from holdover.engine.step import Step
from holdover.ops.native.elementwise import Activation
from holdover.ops.native.mixing import Mixing
from holdover.ops.native.parameters import GatedNorm
from holdover.ops.native.recurrence import Family
from holdover.ops.norm import gated_rms_norm
from holdover.ops.recurrence.gates import softplus_gate
from holdover.ops.recurrence.kda import torch as kda


class KimiDeltaMixer(Mixer):
    """A Kimi delta attention; architectures differ in the projections of their gates, and in the decay's form.

    Args:
        module: Transformers' module; its parameters are used in place.
        layer: the layer's index in the stack.
        project: gives queries, keys and values together, then what `gate_inputs` takes apart.
    """

    def __init__(self, module: Any, layer: int, *, project: JoinedLinear) -> None:
        super().__init__(module, layer)
        m = self.module
        self.conv_weight = conv_weight(m.conv1d)
        self.project = project
        # one rate per head over one bias per (head, key channel)
        self.a_log = m.forget_gate.A_log.view(m.num_heads, 1)
        self.dt_bias = m.forget_gate.dt_bias.view(m.num_heads, m.head_dim)
        self.mixing = self._mixing() if is_compilable(m.conv1d, m.o_norm.weight) else None

    @staticmethod
    def resize(module: Any, layer: RecurrentLayer, spanning: Total | None) -> None:
        """Give the module the sizes of ``layer``."""
        module.num_heads, module.qkv_dim = layer.heads, layer.heads * layer.d_k

    @abstractmethod
    def gate_inputs(self, *parts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The decay's input ``[B, T, H * d_k]``, the write strength ``[B, T, H]`` and the output's gate, all raw."""

    def log_decay(self, f: torch.Tensor) -> torch.Tensor:
        """Log decay in fp32 of the gate's input ``f [B, T, H, d_k]``."""
        return softplus_gate(f, self.a_log, self.dt_bias)

    def mix(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Mix ``x [B, T, hidden]`` along time."""
        m = self.module
        heads = (m.num_heads, m.head_dim)
        qkv, *parts = self.project(x)
        f, b, gate = self.gate_inputs(*parts)
        log_decay, beta = self.log_decay(f.unflatten(-1, heads)), b.sigmoid()
        out = step.mix(self.layer, self.mixing, channels=qkv, decay=log_decay, strength=beta, gate=gate)
        if out is None:
            qkv = step.convolve(self.layer, qkv, self.conv_weight, m.conv1d.bias, m.activation)
            q, k, v = (part.unflatten(-1, heads) for part in qkv.chunk(3, dim=-1))
            if step.tap is not None:
                step.tap(self.layer, "log_decay", log_decay)
            out = step.recur(self.layer, kda, {}, q=q, k=k, v=v, log_decay=log_decay, beta=beta)
            gate = gate.unflatten(-1, heads)
            out = gated_rms_norm(out, gate, m.o_norm.weight, m.o_norm.variance_epsilon, torch.sigmoid).flatten(2)
        projected: torch.Tensor = m.o_proj(out)
        return projected

    def _mixing(self) -> Mixing:
        m = self.module
        return Mixing(
            Family.KDA,
            (m.num_heads, m.num_heads, m.head_dim, m.head_dim),
            self.conv_weight,
            None if m.conv1d.bias is None else m.conv1d.bias.data,
            norm=GatedNorm(m.o_norm.weight.data, m.o_norm.variance_epsilon, Activation.SIGMOID),
        )
