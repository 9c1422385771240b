"""A figure over the units of a run (problems, prefixes, conversations or contexts), with its interval."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdover.evaluation.retention.statistics import bootstrap_mean, bootstrap_ratio


@dataclass(frozen=True)
class Estimate:
    """A figure and the ends of its 95 % bootstrap interval over units; unpacks in this order."""

    mean: float
    low: float
    high: float

    def __iter__(self) -> Iterator[float]:
        return iter((self.mean, self.low, self.high))


def vector(values: Sequence[float]) -> Tensor:
    """``values`` in float64 ``[n]``."""
    return torch.tensor(values, dtype=torch.float64)


def mean_of(values: Tensor) -> Estimate:
    """The mean of ``values [n]``."""
    return Estimate(float(values.double().mean()), *bootstrap_mean(values))


def ratio_of(values: Tensor, reference: Tensor) -> Estimate:
    """``sum(values) / sum(reference)`` of two ``[n]``, the pairs resampled together; the reference is not all zero."""
    return Estimate(float(values.double().sum() / reference.double().sum()), *bootstrap_ratio(values, reference))


def parts(estimate: Estimate | None) -> Iterable[float | None]:
    """A figure and its ends; None three times where there is nothing to estimate."""
    return (None, None, None) if estimate is None else estimate


def mean_if(values: Tensor | None) -> Iterable[float | None]:
    """The mean of ``values [n]`` and its ends; None three times of nothing."""
    return parts(None if values is None else mean_of(values))
