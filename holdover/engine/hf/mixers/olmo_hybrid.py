"""OLMo-Hybrid: gated delta networks whose transitions may have negative eigenvalues."""

from __future__ import annotations

from typing import Any

import torch

from holdover.engine.hf.mixers.base import JoinedLinear
from holdover.engine.hf.mixers.gdn import GatedDeltaMixer, widths


class OlmoHybridMixer(GatedDeltaMixer):
    """`OlmoHybridGatedDeltaNet`."""

    def __init__(self, module: Any, layer: int) -> None:
        m = module
        project = JoinedLinear([m.q_proj, m.k_proj, m.v_proj, m.g_proj, m.b_proj, m.a_proj], widths(m))
        super().__init__(m, layer, project=project, norm=m.o_norm, output=m.o_proj)

    def strength(self, b: torch.Tensor) -> torch.Tensor:
        """Write strength of its raw form ``b [B, T, H]``; above 1, a write turns what it finds around."""
        return 2 * super().strength(b) if self.module.allow_neg_eigval else super().strength(b)
