"""Granite-4.0-H: Mamba-2."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from holdover.engine.hf.mixers.base import Mixer, conv_weight
from holdover.engine.step import Step
from holdover.ops.recurrence.mamba2 import torch as mamba2


class GraniteHybridMixer(Mixer):
    """`GraniteMoeHybridMambaLayer`."""

    def __init__(self, module: nn.Module, layer: int) -> None:
        super().__init__(module, layer)
        m = self.module
        self.conv_weight = conv_weight(m.conv1d)
        self.widths = [m.intermediate_size, m.conv_dim, m.num_heads]
        self.conv_widths = [m.intermediate_size] + [m.n_groups * m.ssm_state_size] * 2
        # parameters without a time axis, in the precision of the state
        self.fixed = {"a": -m.A_log.float().exp(), "d": m.D.float()}

    def mix(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Mix ``x [B, T, hidden]`` along time."""
        m = self.module
        batch, length, _ = x.shape
        gate, xbc, dt = m.in_proj(x).split(self.widths, dim=-1)
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
        out = m.norm(out.reshape(batch, length, -1), gate)
        projected: torch.Tensor = m.out_proj(out.to(x.dtype))
        return projected
