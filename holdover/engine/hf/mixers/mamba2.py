"""Mamba-2 as Bamba's code computes it, which Granite, Nemotron-H and Zamba2 took over to the letter."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from holdover.arch.layout import RecurrentLayer
from holdover.engine.hf.mixers.base import Mixer, Total, conv_weight, is_compilable
from holdover.engine.hf.mixers.spanning import SpanningNorm
from holdover.engine.step import Step
from holdover.ops.native.mixing import Mixing
from holdover.ops.native.parameters import Gating
from holdover.ops.native.recurrence import Family
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
        self.fixed = {"a": -m.A_log.data.float().exp(), "d": m.D.data.float()}
        self.mixing = self._mixing() if is_compilable(m.conv1d) else None

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
        gate, xbc, dt = self.project(x).split(self.widths, dim=-1)
        out = step.mix(self.layer, self.mixing, channels=xbc, decay=dt)
        out = self.gated(self._mix(xbc, dt, step) if out is None else out, gate)
        projected: torch.Tensor = self.module.out_proj(out.to(x.dtype))
        return projected

    def _mix(self, xbc: torch.Tensor, dt: torch.Tensor, step: Step) -> torch.Tensor:
        """What `mixing` computes, part by part, for any number of tokens."""
        m = self.module
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
        return out.flatten(2)

    def _mixing(self) -> Mixing:
        m = self.module
        low, high = m.time_step_limit
        return Mixing(
            Family.MAMBA2,
            (m.num_heads, m.n_groups, m.ssm_state_size, m.head_dim),
            self.conv_weight,
            None if m.conv1d.bias is None else m.conv1d.bias.data,
            Gating(m.dt_bias.data.float(), low=low, high=high),
            rate=self.fixed["a"],
            skip=self.fixed["d"],
        )
