"""Falcon-H1: Mamba-2 beside attention in every layer, with fixed multipliers, and a norm under the gate or none."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from holdover.engine.hf.mixers.mamba2 import Mamba2Mixer


class FalconH1Mixer(Mamba2Mixer):
    """`FalconH1Mixer`."""

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """Gate, convolved channels and step sizes of ``x [B, T, hidden]``, side by side."""
        multipliers: torch.Tensor = self.module.mup_vector
        return super().project(x * self.module.ssm_in_multiplier) * multipliers

    def gated(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Readouts ``[B, T, H * d_v]`` under their gate of the same shape."""
        return super().gated(out, gate) if self.module.mamba_rms_norm else out * F.silu(gate)
