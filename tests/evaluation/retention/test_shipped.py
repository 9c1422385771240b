"""The gated plan that comes with the bundled model."""

from __future__ import annotations

import hashlib

import pytest

from holdover.evaluation.retention.gate import choose
from holdover.retention import RetentionPlan
from holdover.retention.decay import read_decay
from holdover.retention.plan_file import find_plans, read_plan
from holdover.weights.bundled import DEFAULT_MODEL
from holdover.weights.digest import model_digest
from holdover.weights.source import resolve
from tests.project.paths import ROOT

TEXT = ROOT / "benchmarks" / "data" / "held_out.txt"


@pytest.fixture(scope="module")
def plan() -> RetentionPlan:
    files = resolve(DEFAULT_MODEL)
    (path,) = find_plans(files.path, "")
    return read_plan(path)


def test_it_is_the_models_own(plan: RetentionPlan) -> None:
    files = resolve(DEFAULT_MODEL)
    decay = read_decay(files)
    plan.check_fits(decay.fingerprint, decay.layout.state)
    assert plan.digest == RetentionPlan.of(decay, plan.w_max).digest
    assert plan.quality is not None
    assert plan.quality.model_digest == model_digest(files)


def test_its_gate_passed(plan: RetentionPlan) -> None:
    gate = plan.quality
    assert gate is not None
    assert gate.passed
    assert gate.chosen == choose(gate.sweep, gate.budget)
    assert gate.continuations >= 200
    assert gate.tokens >= 64
    assert plan.w_max >= 64
    assert plan.offsets[-1] <= 0.8 * plan.units


def test_its_text_is_here(plan: RetentionPlan) -> None:
    # a source distribution comes without the benchmarks
    if not TEXT.exists():
        pytest.skip("the text is not part of this distribution")
    assert plan.quality is not None
    assert hashlib.sha256(TEXT.read_bytes()).hexdigest() == plan.quality.text_digest
