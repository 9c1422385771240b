"""What a simulation reports, and what its costs are read from and fitted to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from holdover.engine.options import EngineOptions
from holdover.errors import ConfigError, HoldoverError
from holdover.evaluation.simulate.costs import ForwardCost, ServingCost, pairs_of, read_costs, write_costs
from holdover.evaluation.simulate.measure import Observed, fit
from holdover.evaluation.simulate.points import Point, grid
from holdover.evaluation.simulate.simulate import simulate
from holdover.evaluation.traces.exchanges import Exchange
from tests.arch.table import VOCAB
from tests.engine.harness import budgets, host_of
from tests.evaluation.simulate.traffic import COSTS, conversations

LAYOUT = host_of("small-qwen3_5").layout
ONE = [[Exchange(tuple(range(20)), (), (1, 2, 3))]]


def options(slots: int = 9, rows: int = 700, **given: object) -> EngineOptions:
    return EngineOptions(**budgets(LAYOUT, slots, rows), chunk_size=16, idle_chunk_size=16, decode="dense", **given)  # type: ignore[arg-type]


def test_one_request_takes_the_time_of_its_forwards() -> None:
    # a stop below the prompt's end, at 19 of 20 tokens, cuts the second chunk
    chunks = [(0, 16), (16, 3)]
    prefill = sum(COSTS.prefill.ms(count, pairs_of(start, count)) for start, count in chunks)
    steps = [COSTS.decode.ms(1, context) for context in (20, 21, 22)]
    found = simulate(LAYOUT, options(), ONE, clients=1, costs=COSTS)
    assert found.ttft_mean_ms == pytest.approx(prefill + steps[0])
    assert found.e2e_mean_ms == found.e2e_p95_ms == pytest.approx(prefill + sum(steps))
    assert found.hit == 0
    assert (found.native_slots, found.packed_slots, found.rows) == (9, 0, 700)


def test_a_hit_takes_the_time_of_its_restore() -> None:
    twice = ONE * 2
    priced = replace(COSTS, copy_ms=0.0)
    free = simulate(LAYOUT, options(), twice, clients=1, costs=priced)
    paid = simulate(LAYOUT, options(), twice, clients=1, costs=COSTS)
    assert free.restores == {"native": 1, "compressed": 0}
    assert free.hit == 19 / 40
    assert 2 * (paid.ttft_mean_ms - free.ttft_mean_ms) == pytest.approx(COSTS.copy_ms * LAYOUT.state.checkpoint_bytes)


def test_more_state_means_more_hits() -> None:
    dialogues = conversations(12, 3, VOCAB)
    # the other orders weigh checkpoints against each other, and may lose a little by more room
    used = [replace(options(slots, 2000), eviction="lru") for slots in (4, 12, 60)]
    hits = [simulate(LAYOUT, one, dialogues, clients=6, costs=COSTS).hit for one in used]
    assert hits == sorted(hits)
    assert hits[0] < hits[-1]


def test_a_request_that_cannot_be_served_is_an_error() -> None:
    with pytest.raises(HoldoverError, match="server's context is 18"):
        simulate(LAYOUT, options(rows=18), ONE, clients=1, costs=COSTS)
    with pytest.raises(ConfigError, match="state budget"):
        simulate(LAYOUT, replace(options(), state_budget=10), ONE, clients=1, costs=COSTS)


def test_the_grid_has_dense_checkpoints_and_every_combination() -> None:
    points = list(grid([16, 64], ["full", "int8"], ["none", "suffix"], ["lru", "cost"]))
    assert len(set(points)) == len(points) == 2 * (1 + 2 * 2 * 2)
    assert [point.name for point in points[:4]] == ["dense", "nr 16", "wr 16", "nr 16 int8"]
    assert points[0] == Point(None, "full", "none", "lru")


def test_costs_survive_a_file(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    served = replace(COSTS, serving=ServingCost(3.0, 0.25, 0.5, 16))
    write_costs(served, path)
    assert read_costs(path) == served
    # as they were written before servers were measured
    facts = json.loads(path.read_text())
    del facts["serving"]
    path.write_text(json.dumps(facts))
    assert read_costs(path) == COSTS
    path.write_text(json.dumps(facts | {"serving": {"reply": 1.0}}))
    with pytest.raises(HoldoverError, match="measure them with"):
        read_costs(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"prefill": {"base": 1}, "decode": {}}'])
def test_what_are_no_costs_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "costs.json").write_text(text)
    with pytest.raises(HoldoverError, match="measure them with"):
        read_costs(tmp_path / "costs.json")
    with pytest.raises(HoldoverError, match="cannot be read"):
        read_costs(tmp_path / "nowhere.json")


def observed(cost: ForwardCost) -> list[Observed]:
    sizes = [(1, 32, 528), (1, 256, 32896), (2, 1024, 524800), (1, 8, 4096)]
    return [Observed(n, t, p, n * cost.base + cost.token * t + cost.pair * p) for n, t, p in sizes]


def test_costs_are_fitted_and_never_negative() -> None:
    wanted = ForwardCost(2.0, 0.5, 1e-4)
    found = fit(observed(wanted))
    assert (found.base, found.token, found.pair) == pytest.approx((2.0, 0.5, 1e-4))
    with pytest.raises(HoldoverError, match="context is too short"):
        fit([])
    less = fit(observed(replace(wanted, pair=-1e-6)))
    assert less.pair == 0
    assert less.token == pytest.approx(0.5, rel=0.05)
