"""What a model's states do on one prefix: observed horizons and magnitudes (DASC §3.4, Eq. 4 and 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdover.evaluation.retention.session import Session
from holdover.retention.horizon import LONGEST_HORIZON


@dataclass(frozen=True, eq=False)
class Observation:
    """What was seen of every unit on one prefix, per recurrent layer in stack order.

    Attributes:
        horizons: empirical horizon in tokens (H_e), float64 ``[units]``.
        magnitudes: norm of the unit's state after the last token (M_S), float64 ``[units]``.
    """

    horizons: tuple[Tensor, ...]
    magnitudes: tuple[Tensor, ...]


def observe(session: Session, tokens: Sequence[int], epsilon: float) -> Observation:
    """Run one prefix from the empty state. Mutates the session, which holds the prefix afterwards.

    Args:
        session: where it runs.
        tokens: the prefix; every token counts, since nothing is padded.
        epsilon: what is left of a unit after one horizon.
    """
    session.restart()
    decay = _DecaySum()
    session.read(tokens, decay)
    pool, layers = session.native.pool, session.runner.host.layout.state.layers
    return Observation(
        tuple(empirical_horizons(decay.sums[layer.index] / len(tokens), epsilon) for layer in layers),
        tuple(unit_norms(pool.temporal(layer.index)[session.slot], layer.units) for layer in layers),
    )


def empirical_horizons(mean_log_decay: Tensor, epsilon: float) -> Tensor:
    """Tokens after which ``epsilon`` of a unit is left at its mean log decay (Eq. 4); at most `LONGEST_HORIZON`."""
    # of the magnitude, so that a decay of zero of either sign is an infinite horizon
    return (-math.log(epsilon) / mean_log_decay.double().abs()).clamp(max=LONGEST_HORIZON)


def unit_norms(state: Tensor, units: int) -> Tensor:
    """Norm of every unit of one layer's state ``[H, d_k, d_v]`` (Eq. 5): a head's Frobenius norm, or a channel's."""
    # units are whole heads or whole rows, in the state's own order
    norms: Tensor = state.double().reshape(units, -1).norm(dim=1)
    return norms.cpu()


@dataclass
class _DecaySum:
    """A tap that adds up each layer's log decays over time, float64 ``[units]`` on the CPU."""

    sums: dict[int, Tensor] = field(default_factory=dict)

    def __call__(self, layer: int, name: str, x: Tensor) -> None:
        if name == "log_decay":
            # [1, T, H] or [1, T, H, d_k]
            total = x[0].sum(0, dtype=torch.float64).flatten().cpu()
            self.sums[layer] = self.sums.get(layer, torch.zeros_like(total)) + total
