"""The quality gate: which operating point a plan is for, by what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from holdover.evaluation.retention.design import Design
from holdover.retention import OperatingPoint, QualityGate, RetentionPlan


def choose(points: Sequence[OperatingPoint], budget: float) -> OperatingPoint | None:
    """The point to serve with: the largest W_max that meets the budget, with the fewest bytes, then without refresh.

    Args:
        points: what was measured.
        budget: largest acceptable P95 KL in nats.

    Returns:
        None if no point meets the budget.
    """
    # a few tokens without a distribution would not show in a percentile
    passing = [point for point in points if point.p95_kl <= budget and math.isfinite(point.mean_kl)]
    if not passing:
        return None
    return min(passing, key=_cost)


def _cost(point: OperatingPoint) -> tuple[int, int, bool, bool]:
    # where nothing is retained, how it would be stored makes no difference
    return -point.w_max, point.checkpoint_bytes, point.refresh != "none", point.element != "full"


def record(
    plan: RetentionPlan,
    points: Sequence[OperatingPoint],
    chosen: OperatingPoint,
    budget: float,
    *,
    model_digest: str,
    text_digest: str,
    design: Design,
) -> RetentionPlan:
    """The plan with everything that was measured.

    Args:
        plan: the plan of the chosen point.
        points: what was measured.
        chosen: the point to serve with.
        budget: largest acceptable P95 KL in nats.
        model_digest: `weights.digest.model_digest` of the measured model.
        text_digest: SHA-256 of the text.
        design: where it was measured.

    Raises:
        ValueError: the plan is not that of the chosen point.
    """
    if plan.w_max != chosen.w_max:
        raise ValueError(f"a plan for W_max {plan.w_max} cannot record a choice of {chosen.w_max}")
    gate = QualityGate(model_digest, text_digest, budget, design.measured, design.tokens, chosen, tuple(points))
    return replace(plan, quality=gate)
