"""What a plan keeps, in the figures of DASC §4.1 and Appendix A.1; bytes are the codec's business."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import torch

from holdover.arch.layout import RecurrentLayer, StateLayout
from holdover.retention.plan import RetentionPlan


@dataclass(frozen=True)
class Summary:
    """Counts of one plan.

    Attributes:
        w_max: its cutoff in tokens.
        units: retention units of all layers.
        retained: how many are kept.
        r_max: most that any layer keeps (R_max).
        pairs: (layer, head) pairs.
        mixed: pairs with both retained and omitted units; 0 where a head is the unit.
        whole: pairs with every unit retained.
        layer_means: mean over heads of the retained fraction, per recurrent layer.
    """

    w_max: int
    units: int
    retained: int
    r_max: int
    pairs: int
    mixed: int
    whole: int
    layer_means: tuple[float, ...]

    @property
    def retained_fraction(self) -> float:
        """Retained units among all."""
        return self.retained / self.units

    @property
    def r_mean(self) -> float:
        """Mean of the layers' retained counts."""
        return self.retained / len(self.layer_means)

    @property
    def mixed_pairs(self) -> float:
        """Mixed pairs among all, pooled over layers."""
        return self.mixed / self.pairs

    @property
    def layer_range(self) -> tuple[float, float]:
        """Smallest and largest of the layers' mean retained fractions."""
        return min(self.layer_means), max(self.layer_means)

    @property
    def typical_layer(self) -> int:
        """Position among the recurrent layers of the first whose mean is closest to their median (Figure 7)."""
        median = statistics.median(self.layer_means)
        distances = [abs(mean - median) for mean in self.layer_means]
        return distances.index(min(distances))


def summarise(plan: RetentionPlan, layout: StateLayout) -> Summary:
    """Count what ``plan`` keeps of a model's ``layout``."""
    fractions = [head_fractions(mask, layer) for mask, layer in zip(plan.retained, layout.layers, strict=True)]
    pooled = torch.cat(fractions)
    whole, empty = int((pooled == 1).sum()), int((pooled == 0).sum())
    return Summary(
        w_max=plan.w_max,
        units=plan.units,
        retained=sum(plan.counts),
        r_max=max(plan.counts),
        pairs=len(pooled),
        mixed=len(pooled) - whole - empty,
        whole=whole,
        layer_means=tuple(float(x.mean()) for x in fractions),
    )


def head_fractions(mask: torch.Tensor, layer: RecurrentLayer) -> torch.Tensor:
    """Retained fraction of each head of a layer (r_{l,h}), float64 ``[heads]``, from its mask ``[units]``."""
    return mask.view(layer.heads, -1).double().mean(1)


def one_step_decay(horizons: torch.Tensor, epsilon: float) -> torch.Tensor:
    """The decay of one token, ``exp(g)``, that a horizon in tokens stands for (Eq. 3), float64."""
    return torch.exp(math.log(epsilon) / horizons.double())
