"""The gated delta rule with grouped value heads, as every architecture with it computes it."""

from __future__ import annotations

import math
from typing import Any

import torch

from holdover.arch.layout import RecurrentLayer
from holdover.engine.hf.mixers.base import JoinedLinear, Mixer, Total, conv_weight, is_compilable
from holdover.engine.step import Step
from holdover.ops.native.elementwise import Activation
from holdover.ops.native.mixing import Mixing
from holdover.ops.native.parameters import GatedNorm, Gating
from holdover.ops.native.recurrence import Family
from holdover.ops.norm import gated_rms_norm
from holdover.ops.recurrence.gates import softplus_gate
from holdover.ops.recurrence.gdn import torch as gdn


class GatedDeltaMixer(Mixer):
    """A gated delta network; architectures differ in how their projections are cut and what they are called.

    Args:
        module: Transformers' module; its parameters are used in place.
        layer: the layer's index in the stack.
        project: gives queries, keys and values together, the output's gate, the write strength and the decay's input.
        norm: the module's gated norm.
        output: the module's output projection.
    """

    def __init__(self, module: Any, layer: int, *, project: JoinedLinear, norm: Any, output: Any) -> None:
        super().__init__(module, layer)
        self.conv_weight = conv_weight(module.conv1d)
        self.project, self.norm, self.output = project, norm, output
        self.mixing = self._mixing() if is_compilable(module.conv1d, norm.weight) else None

    @staticmethod
    def resize(module: Any, layer: RecurrentLayer, spanning: Total | None) -> None:
        """Give the module the sizes of ``layer``."""
        module.num_v_heads, module.num_k_heads = layer.heads, layer.key_heads
        module.key_dim, module.value_dim = layer.key_heads * layer.d_k, layer.heads * layer.d_v
        module.conv_dim = layer.conv_channels

    def strength(self, b: torch.Tensor) -> torch.Tensor:
        """Write strength of its raw form ``b [B, T, H]``: a multiple of its sigmoid."""
        return b.sigmoid()

    def mix(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Mix ``x [B, T, hidden]`` along time."""
        qkv, z, b, a = self.project(x)
        out = step.mix(self.layer, self.mixing, channels=qkv, decay=a, strength=b, gate=z)
        projected: torch.Tensor = self.output(self._mix(qkv, z, b, a, step) if out is None else out)
        return projected

    def _mix(self, qkv: torch.Tensor, z: torch.Tensor, b: torch.Tensor, a: torch.Tensor, step: Step) -> torch.Tensor:
        """What `mixing` computes, part by part, for any number of tokens."""
        m = self.module
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
            beta=self.strength(b),
        )
        out = gated_rms_norm(out, z.unflatten(-1, out.shape[2:]), self.norm.weight, self.norm.variance_epsilon)
        return out.flatten(2)

    def _mixing(self) -> Mixing:
        m = self.module
        scale = self.strength(torch.tensor(math.inf)).item()
        gating = Gating(m.dt_bias.data.float(), -m.A_log.data.float().exp(), scale=scale)
        return Mixing(
            Family.GDN,
            (m.num_v_heads, m.num_k_heads, m.head_k_dim, m.head_v_dim),
            self.conv_weight,
            None if m.conv1d.bias is None else m.conv1d.bias.data,
            gating,
            GatedNorm(self.norm.weight.data, self.norm.variance_epsilon, Activation.SILU),
        )


def widths(module: Any) -> tuple[int, int, int, int]:
    """Widths of what `GatedDeltaMixer.project` gives."""
    return module.conv_dim, module.value_dim, module.num_v_heads, module.num_v_heads
