"""Mamba-2 as Bamba's code computes it, which Granite, Nemotron-H and Zamba2 took over to the letter."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from holdover.arch.layout import RecurrentLayer
from holdover.engine.hf.mixers.base import Mixer, Total, conv_weight
from holdover.engine.hf.mixers.spanning import SpanningNorm
from holdover.engine.step import Step
from holdover.ops.recurrence.mamba2 import torch as mamba2


class Mamba2Mixer(Mixer):
    """A Mamba-2 layer; an architecture that projects or gates in another way overrides that."""

    def __init__(self, module: nn.Module, layer: int) -> None:
        super().__init__(module, layer)
        m = self.module
        self.conv_weight = conv_weight(m.conv1d)
        self.widths = [m.intermediate_size, m.conv_dim, m.num_heads]
        self.conv_widths = [m.intermediate_size] + [m.n_groups * m.ssm_state_size] * 2
        # parameters without a time axis, in the precision of the state
        self.fixed = {"a": -m.A_log.float().exp(), "d": m.D.float()}

    @staticmethod
    def resize(module: Any, layer: RecurrentLayer, spanning: Total | None) -> None:
        """Give the module the sizes of ``layer``."""
        if spanning is not None and hasattr(module.norm, "weight"):
            module.norm.forward = SpanningNorm(module.norm, module.intermediate_size, spanning)
        module.num_heads, module.n_groups = layer.heads, layer.key_heads
        module.intermediate_size, module.conv_dim = layer.heads * layer.d_v, layer.conv_channels

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """Gate, convolved channels and step sizes of ``x [B, T, hidden]``, side by side."""
        projected: torch.Tensor = self.module.in_proj(x)
        return projected

    def gated(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Readouts ``[B, T, H * d_v]`` under their gate of the same shape."""
        gated: torch.Tensor = self.module.norm(out, gate)
        return gated

    def mix(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Mix ``x [B, T, hidden]`` along time."""
        m = self.module
        batch, length, _ = x.shape
        gate, xbc, dt = self.project(x).split(self.widths, dim=-1)
        xbc = step.convolve(self.layer, xbc, self.conv_weight, m.conv1d.bias, m.activation)
        values, b, c = xbc.split(self.conv_widths, dim=-1)
        dt = F.softplus(dt.float() + m.dt_bias.float()).clamp(*m.time_step_limit)
        if step.tap is not None:
            step.tap(self.layer, "log_decay", dt * self.fixed["a"])
        out = step.recur(
            self.layer,
            mamba2,
            self.fixed,
            x=values.unflatten(-1, (m.num_heads, m.head_dim)),
            dt=dt,
            b=b.unflatten(-1, (m.n_groups, m.ssm_state_size)),
            c=c.unflatten(-1, (m.n_groups, m.ssm_state_size)),
        )
        out = self.gated(out.reshape(batch, length, -1), gate)
        projected: torch.Tensor = m.out_proj(out.to(x.dtype))
        return projected
