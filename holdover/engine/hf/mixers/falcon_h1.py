"""Falcon-H1: Mamba-2 beside attention in every layer, with fixed multipliers, and a norm under the gate or none."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from holdover.arch.layout import RecurrentLayer
from holdover.engine.hf.mixers.base import Total
from holdover.engine.hf.mixers.mamba2 import Mamba2Mixer


class FalconH1Mixer(Mamba2Mixer):
    """`FalconH1Mixer`."""

    @staticmethod
    def resize(module: Any, layer: RecurrentLayer, spanning: Total | None) -> None:
        """Give the module the sizes of ``layer``."""
        whole = _widths(module)
        Mamba2Mixer.resize(module, layer, spanning)
        if module.mamba_rms_norm:
            module.norm.n_groups = layer.key_heads
        # one multiplier for all entries of a part
        parts = zip(module.mup_vector.split(whole, -1), _widths(module), strict=True)
        module.mup_vector = torch.cat([part[..., :width] for part, width in parts], dim=-1)

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """Gate, convolved channels and step sizes of ``x [B, T, hidden]``, side by side."""
        multipliers: torch.Tensor = self.module.mup_vector
        return super().project(x * self.module.ssm_in_multiplier) * multipliers

    def gated(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Readouts ``[B, T, H * d_v]`` under their gate of the same shape."""
        return super().gated(out, gate) if self.module.mamba_rms_norm else out * F.silu(gate)


def _widths(module: Any) -> list[int]:
    """Widths of what the input projection gives: gate, values, B, C and step sizes."""
    groups = module.n_groups * module.ssm_state_size
    return [module.intermediate_size, module.intermediate_size, groups, groups, module.num_heads]
