"""Ling 3 (Bailing-hybrid): Kimi delta attention with full gate projections, and a bounded decay unless switched off."""

from __future__ import annotations

from typing import Any

import torch

from holdover.engine.hf.mixers.base import JoinedLinear
from holdover.engine.hf.mixers.kda import KimiDeltaMixer
from holdover.ops.recurrence.gates import bounded_gate


class BailingHybridMixer(KimiDeltaMixer):
    """`BailingHybridDeltaAttention`."""

    def __init__(self, module: Any, layer: int) -> None:
        m = module
        linears = [m.q_proj, m.k_proj, m.v_proj, m.forget_gate.f_proj, m.b_proj, m.g_proj]
        widths = [3 * m.qkv_dim, m.qkv_dim, m.num_heads, m.qkv_dim]
        super().__init__(m, layer, project=JoinedLinear(linears, widths))

    def gate_inputs(self, *parts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The parts as they are."""
        f, b, g = parts
        return f, b, g

    def log_decay(self, f: torch.Tensor) -> torch.Tensor:
        """Log decay in fp32 of the gate's input ``f [B, T, H, d_k]``."""
        gate = self.module.forget_gate
        return bounded_gate(f, self.a_log, self.dt_bias, gate.lower_bound) if gate.safe_gate else super().log_decay(f)
