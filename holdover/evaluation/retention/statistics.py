"""The few statistics of the reports: rank correlation, quartiles, bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

_RESAMPLES = 2000


@dataclass(frozen=True)
class Quartiles:
    """Median and interquartile range.

    Attributes:
        median: the median.
        q1: lower quartile.
        q3: upper quartile.
        count: values they are of.
    """

    median: float
    q1: float
    q3: float
    count: int


def spearman(x: Tensor, y: Tensor) -> float:
    """Rank correlation of two vectors, equal values sharing their mean rank; NaN if either is constant."""
    a, b = (ranks(v) - (len(v) + 1) / 2 for v in (x, y))
    scale = float(a.norm() * b.norm())
    return float(a @ b) / scale if scale else math.nan


def ranks(x: Tensor) -> Tensor:
    """Ranks from 1, equal values sharing their mean rank, float64 ``[n]``."""
    _, group, counts = torch.unique(x, return_inverse=True, return_counts=True)
    mean_ranks: Tensor = (counts.cumsum(0) - (counts - 1) / 2).double()
    return mean_ranks[group]


def quartiles(values: Iterable[float]) -> Quartiles | None:
    """Quartiles (interpolated) of the values that are numbers; None if none is."""
    known = torch.tensor([v for v in values if not math.isnan(v)], dtype=torch.float64)
    if not len(known):
        return None
    q1, median, q3 = known.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
    return Quartiles(median, q1, q3, len(known))


def bootstrap_mean(values: Tensor, share: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Percentile interval of the mean of ``values [n]``, which are resampled as a whole."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(values), (_RESAMPLES, len(values)), generator=generator)
    return _middle(values.double()[drawn].mean(1), share)


def bootstrap_ratio(values: Tensor, reference: Tensor, share: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Percentile interval of ``sum(values) / sum(reference)``, both ``[n]``, the pairs resampled together.

    Samples whose reference adds up to 0 are left out; one that does not must exist.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(values), (_RESAMPLES, len(values)), generator=generator)
    above, below = (x.double()[drawn].sum(1) for x in (values, reference))
    return _middle((above / below)[below != 0], share)


def _middle(samples: Tensor, share: float) -> tuple[float, float]:
    low, high = samples.quantile(torch.tensor([(1 - share) / 2, (1 + share) / 2], dtype=torch.float64)).tolist()
    return low, high
