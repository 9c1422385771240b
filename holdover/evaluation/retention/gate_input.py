"""The representative gate input a_s that fits observed horizons best, and how far static horizons are off at a cutoff.

The paper chose -0.3 and 0.8 by hand; here a_s is fitted on some prefixes and judged on others (App. A.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Layers = Sequence[Tensor]

# searched range of gate inputs, and the steps of the coarse and the fine search
_REACH, _COARSE, _FINE = 8.0, 0.1, 0.01
# units whose observed horizon is within this factor of a cutoff are near it
_NEAR = 2.0


@dataclass(frozen=True)
class Fit:
    """A fitted gate input.

    Attributes:
        gate_input: a_s, to two decimals.
        error: median over units and prefixes of |ln H_s - ln H_e|.
    """

    gate_input: float
    error: float


@dataclass(frozen=True)
class CutoffError:
    """How static horizons decide at one cutoff, against observed ones; units of all prefixes pooled.

    Attributes:
        w_max: the cutoff in tokens.
        wrong: share of units that are on different sides of it.
        near: units whose observed horizon is within a factor of 2 of it.
        near_error: median |ln H_s - ln H_e| of those; None if there are none.
    """

    w_max: int
    wrong: float
    near: int
    near_error: float | None


def fit_gate_input(static: Callable[[float], Layers], observed: Sequence[Layers]) -> Fit:
    """The a_s with the least median |ln H_s - ln H_e| over all units of all prefixes; of equals the one nearest 0.

    Args:
        static: static horizons of every layer at a gate input.
        observed: empirical horizons of every layer, for each prefix.
    """
    logs = _pooled(observed).log()

    def error(gate_input: float) -> float:
        guess = torch.cat(list(static(gate_input))).double().log().repeat(len(observed))
        return float((guess - logs).abs().median())

    def best(centre: float, reach: float, step: float) -> float:
        count = round(reach / step)
        inputs = [round(centre + step * i, 2) for i in range(-count, count + 1)]
        return min(inputs, key=lambda a: (error(a), abs(a)))

    found = best(best(0.0, _REACH, _COARSE), _COARSE, _FINE)
    return Fit(found, error(found))


def cutoff_errors(static: Layers, observed: Sequence[Layers], cutoffs: Iterable[int]) -> list[CutoffError]:
    """Judge static horizons at every cutoff."""
    guess, seen = torch.cat(list(static)).double().repeat(len(observed)), _pooled(observed)
    distance = (guess.log() - seen.log()).abs()
    found = []
    for w_max in cutoffs:
        near = (seen >= w_max / _NEAR) & (seen <= w_max * _NEAR)
        found.append(
            CutoffError(
                w_max=w_max,
                wrong=float(((guess > w_max) != (seen > w_max)).double().mean()),
                near=int(near.sum()),
                near_error=float(distance[near].median()) if bool(near.any()) else None,
            )
        )
    return found


def median_error(static: Layers, observed: Sequence[Layers]) -> float:
    """Median |ln H_s - ln H_e| over all units of all prefixes."""
    guess = torch.cat(list(static)).double().repeat(len(observed))
    return float((guess.log() - _pooled(observed).log()).abs().median())


def _pooled(observed: Sequence[Layers]) -> Tensor:
    return torch.cat([layer for layers in observed for layer in layers]).double()
