"""Qwen3.5 and Qwen3.6: gated delta networks."""

from __future__ import annotations

from typing import Any

from holdover.engine.hf.mixers.base import JoinedLinear
from holdover.engine.hf.mixers.gdn import GatedDeltaMixer, widths


class Qwen35Mixer(GatedDeltaMixer):
    """`Qwen3_5GatedDeltaNet` and its MoE twin."""

    def __init__(self, module: Any, layer: int) -> None:
        m = module
        project = JoinedLinear([m.in_proj_qkv, m.in_proj_z, m.in_proj_b, m.in_proj_a], widths(m))
        super().__init__(m, layer, project=project, norm=m.norm, output=m.out_proj)
