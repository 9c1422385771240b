"""Qwen3-Next: gated delta networks whose projections interleave their parts key head by key head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from holdover.engine.hf.mixers.base import JoinedLinear
from holdover.engine.hf.mixers.gdn import GatedDeltaMixer, widths


class Qwen3NextMixer(GatedDeltaMixer):
    """`Qwen3NextGatedDeltaNet`."""

    def __init__(self, module: Any, layer: int) -> None:
        m = module
        group = m.num_v_heads // m.num_k_heads
        values = group * m.head_v_dim
        _untangle(m.in_proj_qkvz, m.num_k_heads, (m.head_k_dim, m.head_k_dim, values, values))
        _untangle(m.in_proj_ba, m.num_k_heads, (group, group))
        project = JoinedLinear([m.in_proj_qkvz, m.in_proj_ba], widths(m))
        super().__init__(m, layer, project=project, norm=m.norm, output=m.out_proj)


def _untangle(linear: nn.Linear, key_heads: int, parts: Sequence[int]) -> None:
    """Bring rows that stand key head by key head, each head's ``parts`` side by side, into one block a part."""
    by_head = linear.weight.data.unflatten(0, (key_heads, -1))  # [Hk, rows of a head, hidden]
    linear.weight.data = torch.cat([part.flatten(0, 1) for part in by_head.split(list(parts), dim=1)])
