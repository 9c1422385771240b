"""How far a run's distributions are from exact ones, as journals keep it."""

from __future__ import annotations

from torch import Tensor

from holdover.evaluation.retention.points import kl_divergence


def divergences(exact: Tensor, found: Tensor) -> tuple[float, ...]:
    """KL(exact || found) in nats at each token, to six digits, of logits ``[T, vocabulary]``.

    In float64: what a log in fp32 changes is far below fp32's own rounding of the divergence.
    """
    return tuple(float(f"{value:.6g}") for value in kl_divergence(exact.double(), found.double()).tolist())


def agreeing(exact: Tensor, found: Tensor) -> int:
    """Tokens of ``[T, vocabulary]`` at which both find the same next token most probable."""
    return int((exact.argmax(-1) == found.argmax(-1)).sum())
