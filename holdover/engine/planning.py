"""Which retention plan an engine serves with, and how: the quality gate decides what is chosen without being asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from holdover.engine.hf.loader import Loaded
from holdover.engine.options import EngineOptions
from holdover.errors import PlanError
from holdover.retention import Element, RefreshPolicy, RetentionPlan
from holdover.retention.decay import read_decay
from holdover.retention.plan_file import find_plans, read_plan
from holdover.weights.digest import model_digest
from holdover.weights.source import ModelFiles

AUTO = "auto"
_UNASKED = "dense checkpoints: no plan was asked for"


@dataclass(frozen=True)
class Planned:
    """A decision, with what the user should hear of it.

    Attributes:
        plan: the plan, or None for dense checkpoints.
        note: where it comes from, or why there is none.
        warnings: what speaks against serving so.
    """

    plan: RetentionPlan | None
    note: str
    warnings: tuple[str, ...] = ()


def choose_plan(loaded: Loaded, wanted: str | Path | None) -> Planned:
    """Find and check the plan that is wanted for a loaded model.

    Args:
        loaded: the model.
        wanted: path of a plan; ``auto`` for the gated plan beside the model or in the user's directory, if its gate
            passed on these very weights; None for no plan.

    Raises:
        PlanError: a plan that was named cannot be read, or is for another model.
    """
    if wanted is not None and loaded.files is None:
        raise PlanError(f"{loaded.name} was not read from files, so no plan can be checked against it")
    return Planned(None, _UNASKED) if loaded.files is None else plan_for(loaded.files, wanted, loaded.model_digest)


def plan_for(files: ModelFiles, wanted: str | Path | None, digest: str | None = None) -> Planned:
    """The same for a model that need not be loaded yet.

    Args:
        files: its files.
        wanted: as for `choose_plan`.
        digest: digest of its weights and configuration; computed if None.

    Raises:
        PlanError: as `choose_plan`.
    """
    if wanted is None:
        return Planned(None, _UNASKED)
    digest = digest or model_digest(files)
    decay = read_decay(files)
    fingerprint, state = decay.fingerprint, decay.layout.state
    if str(wanted) != AUTO:
        plan = read_plan(Path(wanted).expanduser())
        plan.check_fits(fingerprint, state)
        return Planned(plan, f"{wanted}, W_max {plan.w_max}", _doubts(plan, digest))
    passed_over: list[str] = []
    for path in find_plans(files.path, fingerprint):
        try:
            plan = read_plan(path)
            plan.check_fits(fingerprint, state)
            doubts = _doubts(plan, digest)
        except PlanError as error:
            doubts = (str(error),)
        if not doubts:
            return Planned(plan, f"{path}, W_max {plan.w_max}", tuple(passed_over))
        passed_over += [f"{path} was passed over: {doubt}" for doubt in doubts]
    return Planned(
        None, "dense checkpoints: no gated plan was found (holdover calibrate makes one)", tuple(passed_over)
    )


def with_plan(
    options: EngineOptions,
    planned: Planned,
    *,
    element: Element | None = None,
    refresh: RefreshPolicy | None = None,
) -> EngineOptions:
    """Options that serve with a plan; what is not said follows the point at which its gate was measured."""
    gate = planned.plan.quality if planned.plan is not None else None
    chosen = gate.chosen if gate is not None else None
    return replace(
        options,
        plan=planned.plan,
        element=element or (chosen.element if chosen is not None else "full"),
        refresh=refresh or (chosen.refresh if chosen is not None else "none"),
        shadow_gate=options.shadow_gate if gate is None or options.shadow_gate is not None else gate.budget,
    )


def gate_of(options: EngineOptions) -> tuple[str, bool] | None:
    """What was measured at the point at which ``options`` serve, and whether that is within the budget.

    None without a plan, or where its gate is missing.
    """
    gate = options.plan.quality if options.plan is not None else None
    if options.plan is None or gate is None:
        return None
    points = (gate.chosen, *gate.sweep)
    wanted = (options.plan.w_max, options.refresh, options.element)
    point = next((p for p in points if (p.w_max, p.refresh, p.element) == wanted), None)
    if point is None:
        return f"refresh={options.refresh} with {options.element} elements was not measured by the plan's gate", False
    verdict = "within" if point.p95_kl <= gate.budget else "above"
    kl = f"KL to exact {point.mean_kl:.2g} mean, {point.p95_kl:.2g} P95, {point.first_kl:.2g} at the first token"
    return f"{kl}: {verdict} the budget of {gate.budget:g} (P95)", point.p95_kl <= gate.budget


def _doubts(plan: RetentionPlan, digest: str) -> tuple[str, ...]:
    gate = plan.quality
    if gate is None:
        return ("the plan has no quality gate: run holdover calibrate",)
    if gate.model_digest != digest:
        return ("the plan's quality gate was measured on other weights: run holdover calibrate",)
    if not gate.passed:
        point = gate.chosen
        return (f"the plan missed its quality gate: P95 KL {point.p95_kl:.3g} is above {gate.budget:g}",)
    return ()
