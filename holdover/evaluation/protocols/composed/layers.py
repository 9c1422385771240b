"""How far every layer is from the truth in one problem, arm by arm."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from torch import Tensor

from holdover.evaluation.chunks.bench import Workbench
from holdover.evaluation.chunks.case import Case
from holdover.evaluation.chunks.depth import Depth, LayerErrors
from holdover.evaluation.chunks.inputs import compose_from
from holdover.evaluation.chunks.view import View
from holdover.evaluation.protocols.composed.design import EXACT, NONE, Arm, Design

# norms of the two terms of the error's recursion (Eq. 7), beside the parts that `Depth` compares
CARRIED, INJECTED = "carried", "injected"


def compare(bench: Workbench, case: Case, number: int, design: Design) -> dict[str, Any]:
    """Relative errors by the arm's name, part and layer, as JSON takes them.

    Args:
        bench: takes the case.
        case: a problem without text around its chunks.
        number: seed of the initialiser ``random``.
        design: the arms.
    """
    bench.open(case, number)
    view = bench.view
    depth = Depth(view)
    found: dict[str, LayerErrors] = {}
    isolated = [arm for arm in design.compared if arm.source == "isolated"]
    for selection, arms in groupby(isolated, lambda arm: arm.selection):
        positions = selection.choose(bench)
        for arm in arms:
            bench.compose(positions, arm.initialiser, design.conv_window)
            found[arm.name] = depth.errors()
    if others := [arm for arm in design.compared if arm.source != "isolated"]:
        states, recursion = compose_from(view)
        for arm in others:
            bench.compose((), EXACT)
            _overwrite(view, states[arm.source], conv=arm.source == "true")
            found[arm.name] = depth.errors()
        found[Arm(NONE, EXACT).name] |= {CARRIED: recursion.carried, INJECTED: recursion.injected}
    return {name: {part: _texts(errors) for part, errors in parts.items()} for name, parts in found.items()}


def _overwrite(view: View, states: Mapping[int, Tensor], *, conv: bool) -> None:
    """Let the composed context end in these states, and where wanted in the true conv window."""
    pool, slot = view.tiers.native.pool, view.made.slot
    for layer, state in states.items():
        pool.temporal(layer)[slot].copy_(state)
        if conv:
            pool.conv(layer)[slot].copy_(pool.conv(layer)[view.true.slot])


def _texts(errors: Mapping[int, float]) -> dict[str, float]:
    return {str(layer): error for layer, error in errors.items()}
