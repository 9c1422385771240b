"""Which plan an engine serves with, and the options that only make sense with one. On the bundled model."""

from dataclasses import replace
from pathlib import Path

import pytest

from holdover.engine.engine import Engine
from holdover.engine.hf.loader import Loaded, load
from holdover.engine.options import EngineOptions
from holdover.engine.planning import choose_plan, gate_of, with_plan
from holdover.errors import ConfigError, PlanError
from holdover.retention import RetentionPlan
from holdover.retention.decay import read_decay
from holdover.retention.plan_file import find_plans, read_plan, user_plan, write_plan
from holdover.weights.bundled import DEFAULT_MODEL

BUDGETS = {"state_budget": 1 << 24, "kv_budget": 1 << 24, "device": "cpu"}


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load(DEFAULT_MODEL, device="cpu")


@pytest.fixture
def plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's directory of plans, empty."""
    monkeypatch.setenv("HOLDOVER_PLANS", str(tmp_path / "plans"))
    return tmp_path / "plans"


def ungated(loaded: Loaded, w_max: int = 64) -> RetentionPlan:
    assert loaded.files is not None
    return RetentionPlan.of(read_decay(loaded.files), w_max)


def shipped(loaded: Loaded) -> RetentionPlan:
    assert loaded.files is not None
    (path,) = find_plans(loaded.files.path, "")
    return read_plan(path)


def test_auto_takes_the_gated_plan_beside_the_model_as_it_was_gated(loaded: Loaded, plans: Path) -> None:
    planned = choose_plan(loaded, "auto")
    assert planned.plan is not None
    assert planned.plan.digest == shipped(loaded).digest
    assert not planned.warnings
    options = with_plan(EngineOptions(), planned)
    gate = planned.plan.quality
    assert gate is not None
    assert (options.element, options.refresh, options.shadow_gate) == (
        gate.chosen.element,
        gate.chosen.refresh,
        gate.budget,
    )
    text, is_within = gate_of(options) or ("", False)
    assert is_within, text
    # what the gate measured as too costly is said to be so
    text, is_within = gate_of(with_plan(EngineOptions(), planned, refresh="none")) or ("", True)
    assert not is_within
    assert "above the budget" in text


def test_auto_passes_over_what_has_no_gate_or_one_of_other_weights(loaded: Loaded, plans: Path) -> None:
    elsewhere = replace(loaded, model_digest="other")
    planned = choose_plan(elsewhere, "auto")
    assert planned.plan is None
    assert any("other weights" in warning for warning in planned.warnings)
    # the user's own is next
    plan = shipped(loaded)
    assert plan.quality is not None
    theirs = replace(plan, quality=replace(plan.quality, model_digest="other"))
    write_plan(theirs, user_plan(plan.model))
    planned = choose_plan(elsewhere, "auto")
    assert planned.plan is not None
    assert str(plans) in planned.note


def test_a_plan_that_is_named_is_used_with_a_warning(loaded: Loaded, tmp_path: Path) -> None:
    path = tmp_path / "plan.safetensors"
    write_plan(ungated(loaded), path)
    planned = choose_plan(loaded, path)
    assert planned.plan is not None
    assert "no quality gate" in planned.warnings[0]
    assert gate_of(with_plan(EngineOptions(), planned)) is None


def test_a_plan_of_other_weights_or_units_is_refused(loaded: Loaded, tmp_path: Path) -> None:
    path, plan = tmp_path / "plan.safetensors", ungated(loaded)
    write_plan(replace(plan, model="0" * 64), path)
    with pytest.raises(PlanError, match="another model's weights"):
        choose_plan(loaded, path)
    cut = [tuple(x[:4] for x in tensors) for tensors in (plan.horizons, plan.retained)]
    write_plan(replace(plan, horizons=cut[0], retained=cut[1]), path)
    with pytest.raises(PlanError, match="one entry a unit"):
        choose_plan(loaded, path)


def test_options_are_checked_once_the_plan_is_chosen(tmp_path: Path) -> None:
    with Engine.from_pretrained(plan="auto", packed_slots=3, **BUDGETS) as engine:
        assert engine.core.cache.tiers.packed is not None
        assert engine.core.cache.tiers.packed.pool.num_slots == 3
    for wrong, message in (
        ({"packed_slots": 3}, "packed slots"),
        ({"refresh": "suffix"}, "give a plan"),
        ({"shadow_share": 0.5}, "shadow check"),
        ({"element": "int4"}, "element must be one of"),
        ({"plan": "auto", "native_slots": 1}, "native slots are too few"),
        ({"spill_dir": tmp_path / "spill", "spill_budget": 10}, "cannot hold one checkpoint"),
    ):
        with pytest.raises(ConfigError, match=message):
            Engine.from_pretrained(**(BUDGETS | wrong))  # type: ignore[arg-type]
    assert not (tmp_path / "spill").exists()


def test_what_is_not_forgotten_yet_is_left_out_only_if_it_is_replayed() -> None:
    for refresh, tier in (("none", "native"), ("suffix", "compressed")):
        with Engine.from_pretrained(plan="auto", refresh=refresh, **BUDGETS) as engine:  # type: ignore[arg-type]
            messages = [{"role": "user", "content": "Hello"}]
            first = engine.chat(messages)
            again = engine.chat(messages)
            # far within the horizons of what the plan omits
            assert (again.cache.tier, again.cache.lineage) == (tier, "exact")
            assert again.token_ids == first.token_ids
