"""Kimi-Linear: Kimi delta attention whose gates are projected by two thin matrices each."""

from __future__ import annotations

from typing import Any

import torch

from holdover.engine.hf.mixers.base import JoinedLinear
from holdover.engine.hf.mixers.kda import KimiDeltaMixer


class KimiLinearMixer(KimiDeltaMixer):
    """`KimiLinearDeltaAttention`."""

    def __init__(self, module: Any, layer: int) -> None:
        m = module
        thin = [m.forget_gate.f_a_proj, m.b_proj, m.g_a_proj]
        widths = [3 * m.qkv_dim, *(linear.out_features for linear in thin)]
        super().__init__(m, layer, project=JoinedLinear([m.q_proj, m.k_proj, m.v_proj, *thin], widths))

    def gate_inputs(self, *parts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Widen the thin parts."""
        f, b, g = parts
        return self.module.forget_gate.f_b_proj(f), b, self.module.g_b_proj(g)
