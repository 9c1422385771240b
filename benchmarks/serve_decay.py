"""Decay parameters drawn to the statistics that the DASC paper prints of a model's horizons."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import torch
from torch import Tensor

from holdover.arch.layout import RecurrentLayer
from holdover.retention.horizon import DEFAULT_EPSILON, DEFAULT_GATE_INPUT

_SEED = 0


@dataclass(frozen=True)
class Horizons:
    """How the horizons of a model's units are distributed.

    Attributes:
        survival: tokens, and the share of units that last longer, from ``(shortest, 1)`` to ``(longest, 0)``; between
            them the share is linear in the logarithm of the tokens.
        of_head: share of a unit's rank that all units of its head have in common.
        of_layer: share that all units of its layer have in common.
    """

    survival: tuple[tuple[float, float], ...]
    of_head: float
    of_layer: float

    def draw(self, layers: tuple[RecurrentLayer, ...]) -> list[Tensor]:
        """Horizons in tokens, float64 ``[units]`` of each layer; the same ones every time.

        Ranks are drawn by a Gaussian copula and then made even, so that the shares of `survival` hold exactly.
        """
        random = torch.Generator().manual_seed(_SEED)

        def normal(count: int) -> Tensor:
            return torch.randn(count, generator=random, dtype=torch.float64)

        own = math.sqrt(max(0.0, 1 - self.of_head - self.of_layer))
        scores = []
        for layer in layers:
            head = normal(layer.heads).repeat_interleave(layer.units // layer.heads)
            shared = math.sqrt(self.of_layer) * normal(1) + math.sqrt(self.of_head) * head
            scores.append(shared + own * normal(layer.units))
        drawn = torch.cat(scores)
        shares = (drawn.argsort(descending=True).argsort().double() + 0.5) / len(drawn)
        horizons = torch.tensor([self._horizon(share) for share in shares.tolist()], dtype=torch.float64)
        return list(horizons.split([layer.units for layer in layers]))

    def _horizon(self, share: float) -> float:
        """Tokens than which ``share`` of the units last longer."""
        falling = [-left for _, left in self.survival]
        place = min(max(bisect_left(falling, -share), 1), len(falling) - 1)
        (short, more), (long, fewer) = self.survival[place - 1 : place + 1]
        way = (more - share) / (more - fewer)
        return float(short * (long / short) ** way)


def horizon_of(decay: float) -> float:
    """Horizon in tokens of a unit with a one-step decay."""
    return math.log(DEFAULT_EPSILON) / math.log(decay)


def softplus_bias(horizons: Tensor) -> Tensor:
    """The ``dt_bias`` that gives ``horizons`` under a softplus gate whose ``A_log`` is zero (DASC Eq. 2 and 3)."""
    rate = -math.log(DEFAULT_EPSILON) / horizons
    return torch.log(torch.expm1(rate)) - DEFAULT_GATE_INPUT["softplus"]
