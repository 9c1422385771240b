"""Mamba-2's gated norm where the heads of its one group are spread over ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from holdover.engine.hf.mixers.base import Total


class SpanningNorm:
    """A gated RMS norm over the readouts of all ranks, of which this one has some.

    Args:
        norm: Transformers' module, its weight cut to this rank's readouts.
        width: readouts of all ranks.
        total: sums over the ranks, in place.
    """

    def __init__(self, norm: Any, width: int, total: Total) -> None:
        self._norm, self._width, self._total = norm, width, total
        # only Falcon-H1 has a choice
        self._gates_last: bool = getattr(norm, "norm_before_gate", False)

    def __call__(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Readouts ``[B, T, d]`` under their gate, in the dtype of the readouts."""
        wide, opened = out.float(), F.silu(gate.float())
        x = wide if self._gates_last else wide * opened
        mean = self._total(x.square().sum(-1, keepdim=True)) / self._width
        normed: torch.Tensor = self._norm.weight * (x * torch.rsqrt(mean + self._norm.variance_epsilon)).to(out.dtype)
        return (normed * opened).to(out.dtype) if self._gates_last else normed
