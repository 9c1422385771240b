"""What operating points are measured to cost, against states treated by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from holdover.arch.architecture import Gate
from holdover.engine.runner import Runner
from holdover.engine.step import KVMode, Span, StateMode
from holdover.errors import ConfigError
from holdover.evaluation.retention.design import DEPTHS, Design
from holdover.evaluation.retention.points import Samples, kl_divergence
from holdover.evaluation.retention.sweep import measure
from holdover.retention import RetentionPlan
from holdover.retention.horizon import static_horizons
from holdover.state import SlotPool
from holdover.store import KVPool
from tests.arch.table import build_model
from tests.engine.harness import host_of, prompt_of
from tests.helpers import assert_close

MODELS = ["qwen3_5", "kimi_linear", "granite_hybrid"]
GATE = Gate("softplus")
every_model = pytest.mark.parametrize("name", MODELS)
DESIGN = Design(continuations=DEPTHS, tokens=4, longest=64)
TEXT = prompt_of(DESIGN.pieces * DESIGN.piece)


@cache
def plan_of(name: str, w_max: int) -> RetentionPlan:
    """The plan of a random model, whose weights are in no file."""
    model, layout = build_model(name), host_of(name).layout.state
    parameters = dict(model.named_parameters())
    horizons = []
    for layer in layout.layers:
        (a_log,) = (p for n, p in parameters.items() if f"layers.{layer.index}." in n and n.endswith("A_log"))
        (bias,) = (p for n, p in parameters.items() if f"layers.{layer.index}." in n and n.endswith("dt_bias"))
        horizons.append(static_horizons(a_log, bias, layer, GATE, gate_input=0.0))
    return RetentionPlan.select(
        horizons, w_max, model=name, layout=layout, gate="softplus", gate_input=0.0, epsilon=1e-3
    )


def measured(name: str, *plans: RetentionPlan, design: Design = DESIGN) -> dict[tuple[int, str, str], Samples]:
    *_, samples = measure(host_of(name), plans, TEXT, design)
    return {(s.w_max, s.refresh, s.element): s for s in samples}


@every_model
def test_a_plan_that_omits_nothing_costs_nothing(name: str) -> None:
    smallest = min(float(x.min()) for x in plan_of(name, 4).horizons)
    assert smallest > 4
    found = measured(name, plan_of(name, 4))
    for refresh in ("none", "suffix"):
        samples = found[4, refresh, "full"]
        assert len(samples.kl) == len(samples.errors) == len(samples.seconds) == DEPTHS
        # the same numbers, but in a forward of another batch size
        assert float(torch.stack(samples.kl).max()) < 1e-6
        assert not torch.stack(samples.errors).any()
    assert float(torch.stack(found[4, "none", "int8"].errors).max()) < 0.02


@every_model
def test_points_against_states_treated_by_hand(name: str) -> None:
    plan = plan_of(name, 64)
    assert 0 < plan.offsets[-1] < plan.units
    design = replace(DESIGN, longest=128)
    text, depth = prompt_of(design.piece), design.longest
    *_, samples_of = measure(host_of(name), [plan], text, design)
    found = {(s.refresh, s.element): s for s in samples_of}
    layout = host_of(name).layout
    slots, kv = SlotPool(layout.state, 3), KVPool(layout.kv, 200)
    runner, rows = Runner(host_of(name), slots, kv), kv.allocate(design.piece)
    slots.reset(1, b"")
    runner.run([Span(1, text[:depth], 0, rows[:depth])])
    for refresh in ("none", "suffix"):
        slots.copy(1, 2)
        if refresh == "suffix":
            window = plan.replay_window(depth)
            assert 0 < window <= 64
            span = Span(3, text[depth - window : depth], depth - window, rows[:depth])
            runner.run([span], kv=KVMode.DISCARD, state=StateMode.SCRATCH)
        errors = []
        for layer, mask in zip(layout.state.layers, plan.retained, strict=True):
            state = slots.temporal(layer.index)
            # whole heads or single rows
            rows_of = state.view(4, len(mask), -1)
            rows_of[2, ~mask] = rows_of[3, ~mask] if refresh == "suffix" else 0
            errors.append((state[2] - state[1]).norm() / state[1].norm())
        following, more = text[depth : depth + 4], kv.allocate(4)
        got = runner.run([Span(2, following, depth, torch.cat([rows[:depth], more]))], logits=None).logits
        kv.free(more)
        slots.copy(1, 3)
        exact = runner.run([Span(3, following, depth, rows)], logits=None).logits
        samples = found[refresh, "full"]
        assert_close("errors", samples.errors[-1], torch.stack(errors), 1e-4)
        # a difference of nearly equal distributions: its rounding is that of the logits, not its own
        torch.testing.assert_close(samples.kl[-1], kl_divergence(exact, got)[0], rtol=1e-2, atol=1e-6)
        assert float(samples.errors[-1].max()) > 1e-3


@every_model
def test_larger_cutoffs_cost_fewer_bytes_and_more_error(name: str) -> None:
    design = replace(DESIGN, longest=512 - DESIGN.tokens)
    plans = [plan_of(name, w) for w in (8, 32, 127)]
    host = host_of(name)
    samples = next(measure(host, plans, prompt_of(design.piece), design))
    by_point = {(s.w_max, s.refresh, s.element): s for s in samples}
    for element in ("full", "int8"):
        sizes = [by_point[p.w_max, "none", element].checkpoint_bytes for p in plans]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] < host.layout.state.checkpoint_bytes
        errors = [float(by_point[p.w_max, "none", element].errors[-1].max()) for p in plans]
        assert errors == sorted(errors)
    for plan in plans:
        full, int8 = (by_point[plan.w_max, "none", element] for element in ("full", "int8"))
        assert int8.checkpoint_bytes < full.checkpoint_bytes


def test_exact_work_is_done_once() -> None:
    host, plans = host_of("qwen3_5"), [plan_of("qwen3_5", w) for w in (8, 64)]
    before = host.forwards
    measured("qwen3_5", *plans)
    # a prefix: to the depth (the first reads it whole, the last ones join on), its continuation, and for each plan
    # a replay and one forward of all points
    replays = sum(not plan.omits_nothing for plan in plans)
    reads = DEPTHS if DESIGN.longest // DEPTHS > DESIGN.tokens else 1
    assert host.forwards - before == reads + DEPTHS * (1 + len(plans) + replays)


def test_figures_of_a_point() -> None:
    kl = [torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0])]
    errors = [torch.tensor([0.1, 0.5]), torch.tensor([0.3, 0.1])]
    samples = Samples(64, "none", "full", 1000, kl, errors, [0.003, 0.001])
    point = samples.point()
    assert (point.mean_kl, point.p95_kl) == (1.5, 3.0)
    # mean of each layer, then the worst
    assert point.worst_layer_error == pytest.approx(0.3)
    assert point.restore_ms == pytest.approx(2.0)
    assert samples.point().first_kl == 1.0
    # two continuations: their means are the ends
    assert samples.mean_interval() == (0.5, 2.5)


@pytest.mark.parametrize(
    ("design", "cutoffs", "text", "message"),
    [
        (DESIGN, [16], 67, "the text has 67 tokens and 1 pieces of 68"),
        (replace(DESIGN, continuations=17), [16], 68, "2 pieces"),
        (DESIGN, [16, 17], 500, "a cutoff of 17 needs prefixes up to 68"),
        (replace(DESIGN, tokens=5), [16], 500, "raise --prefix to 80"),
        (replace(DESIGN, longest=512), [16], 5000, "do not fit into the model's context of 512"),
        (replace(DESIGN, tokens=0), [16], 500, "at least one"),
        (DESIGN, [], 500, "at least one"),
    ],
)
def test_designs_that_cannot_be_carried_out(design: Design, cutoffs: list[int], text: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        design.check(text, cutoffs, 512)


def test_a_design_that_can() -> None:
    DESIGN.check(68, [16], 512)
    assert DESIGN.depths == tuple(range(4, 65, 4))
    assert replace(DESIGN, continuations=17).measured == 32
