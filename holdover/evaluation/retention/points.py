"""What one operating point was measured to do, and what is made of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdover.evaluation.retention.statistics import bootstrap_mean
from holdover.retention import Element, OperatingPoint, RefreshPolicy


@dataclass
class Samples:
    """Measurements at one operating point, one entry a continuation.

    Attributes:
        w_max: retention cutoff in tokens.
        refresh: what became of omitted units.
        element: how retained elements were stored.
        checkpoint_bytes: bytes of one checkpoint.
        kl: KL in nats after each token, fp32 ``[tokens]`` each.
        errors: relative error of the restored state in each recurrent layer, float64 ``[layers]`` each.
        seconds: time to restore, the refresh included.
    """

    w_max: int
    refresh: RefreshPolicy
    element: Element
    checkpoint_bytes: int
    kl: list[Tensor] = field(default_factory=list)
    errors: list[Tensor] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def point(self) -> OperatingPoint:
        """The figures that a quality gate records."""
        kl = torch.stack(self.kl).double().flatten()
        return OperatingPoint(
            w_max=self.w_max,
            refresh=self.refresh,
            element=self.element,
            mean_kl=float(kl.mean()),
            p95_kl=percentile(kl, 0.95),
            first_kl=float(torch.stack([kl[0] for kl in self.kl]).double().mean()),
            worst_layer_error=float(torch.stack(self.errors).mean(0).max()),
            checkpoint_bytes=self.checkpoint_bytes,
            restore_ms=1e3 * statistics.median(self.seconds),
        )

    def mean_interval(self) -> tuple[float, float]:
        """95 % interval of the mean KL; whole continuations are resampled, since their tokens depend on each other."""
        return bootstrap_mean(torch.stack([kl.double().mean() for kl in self.kl]))


def percentile(values: Tensor, share: float) -> float:
    """The smallest value that at least ``share`` of ``values [n]`` do not exceed; of any number of them."""
    rank = min(len(values), max(1, -int(-share * len(values) // 1)))
    return float(values.kthvalue(rank).values)


def kl_divergence(exact: Tensor, approximate: Tensor) -> Tensor:
    """KL(exact || approximate) in nats of logits ``[..., vocabulary]``, at least 0, fp32 ``[...]``."""
    p, q = exact.log_softmax(-1), approximate.log_softmax(-1)
    # rounding can make it negative
    return (p.exp() * (p - q)).sum(-1).clamp_min(0)


def layer_errors(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> Tensor:
    """|got - wanted| / |wanted| of each layer's state, float64 ``[layers]`` on the CPU."""
    pairs = [(x.double(), y.double()) for x, y in zip(got, wanted, strict=True)]
    return torch.stack([((x - y).norm() / y.norm().clamp_min(1e-30)).cpu() for x, y in pairs])
