"""The point that is chosen, and what of it a plan remembers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from holdover.evaluation.retention.design import Design
from holdover.evaluation.retention.gate import choose, record
from holdover.retention import OperatingPoint
from holdover.retention.plan_file import read_plan, write_plan
from tests.evaluation.retention.test_sweep import plan_of


def point(w_max: int, p95: float, size: int = 100, refresh: str = "none", element: str = "full") -> OperatingPoint:
    return OperatingPoint(w_max, refresh, element, p95 / 2, p95, p95, 0.1, size, 1.0)  # type: ignore[arg-type]


SWEEP = [
    point(16, 0.001, 100),
    point(64, 0.09, 80),
    point(64, 0.01, 80, "suffix"),
    point(64, 0.02, 30, "suffix", "int8"),
    point(128, 0.5, 60),
    point(128, 0.2, 60, "suffix"),
]


@pytest.mark.parametrize(
    ("budget", "want"),
    [
        (0.0005, None),
        (0.001, SWEEP[0]),
        (0.01, SWEEP[2]),
        (0.05, SWEEP[3]),
        # the fewest bytes, although a refresh is dearer
        (0.1, SWEEP[3]),
        (0.2, SWEEP[5]),
        # as many bytes: without refresh
        (0.5, SWEEP[4]),
    ],
)
def test_the_largest_cutoff_then_bytes_then_no_refresh(budget: float, want: OperatingPoint | None) -> None:
    assert choose(SWEEP, budget) == want
    assert choose(SWEEP[::-1], budget) == want


def test_what_is_not_a_number_meets_no_budget() -> None:
    assert choose([point(64, math.nan)], 1.0) is None
    assert choose([replace(point(64, 0.01), mean_kl=math.nan)], 1.0) is None


def test_the_plan_remembers_everything(tmp_path: Path) -> None:
    made = plan_of("qwen3_5", 64)
    design = Design(continuations=200, tokens=64, longest=2048)
    digests = {"model_digest": "m", "text_digest": "t"}
    plan = record(made, SWEEP, SWEEP[3], 0.05, **digests, design=design)
    write_plan(plan, tmp_path / "plan.safetensors")
    found = read_plan(tmp_path / "plan.safetensors")
    assert found.digest == plan.digest == made.digest
    gate = found.quality
    assert gate is not None
    assert gate.passed
    assert (gate.chosen, gate.sweep) == (SWEEP[3], tuple(SWEEP))
    assert (gate.budget, gate.model_digest, gate.text_digest) == (0.05, "m", "t")
    assert (gate.continuations, gate.tokens) == (208, 64)
    with pytest.raises(ValueError, match="W_max 64 cannot record a choice of 128"):
        record(made, SWEEP, SWEEP[4], 0.05, **digests, design=design)
