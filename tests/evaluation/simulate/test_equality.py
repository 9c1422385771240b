"""The simulation takes every decision that the engine takes, since it runs the same code."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from holdover.engine.build import build_core
from holdover.engine.core import EngineCore
from holdover.engine.options import EngineOptions
from holdover.evaluation.simulate.host import Clock, SimulatedDecoder, SimulatedHost
from holdover.evaluation.simulate.replay import Served, replay
from holdover.evaluation.simulate.simulate import VirtualTime
from holdover.prefix.policies import DEFAULT_POLICY, AnyOf, EveryN
from tests.arch.table import VOCAB
from tests.codec.build import random_plan
from tests.engine.harness import Bench, budgets, host_of
from tests.evaluation.simulate.traffic import COSTS, conversations

NAME = "small-qwen3_5"
DIALOGUES = conversations(9, 3, VOCAB)
ARMS: dict[str, dict[str, Any]] = {
    "dense": {},
    "zeros": {"element": "full", "refresh": "none", "packed_above": 0},
    "int8": {"element": "int8", "refresh": "none", "packed_above": 0},
    "replayed": {"element": "full", "refresh": "suffix"},
    "packed only": {"element": "full", "refresh": "suffix", "dense_spill": False},
}


class Real:
    """Time of this machine."""

    @property
    def ms(self) -> float:
        return 1e3 * time.perf_counter()

    def sent(self, prompt: int) -> float:
        return 0.0

    def wait(self, until: float) -> None:
        assert until <= self.ms

    def stepped(self, core: EngineCore, tokens: int) -> None:
        core.check_integrity()


def options_of(arm: str, eviction: str) -> EngineOptions:
    layout = host_of(NAME).layout
    given: dict[str, Any] = budgets(layout, 9, 700) | ARMS[arm]
    if ARMS[arm]:
        slots = {"packed_slots": 5, "native_slots": 6, "state_budget": 1 << 24}
        given |= {"plan": random_plan(layout.state, 3, 0.5), **slots}
    return EngineOptions(
        max_running=3,
        chunk_size=16,
        idle_chunk_size=32,
        policy=AnyOf((DEFAULT_POLICY, EveryN(32))),
        eviction=eviction,  # type: ignore[arg-type]
        **given,
    )


def facts(core: EngineCore, served: list[Served]) -> dict[str, Any]:
    stats, counters = core.stats, core.cache.counters
    order = [(one.header.depth, one.tier, one.header.key.hex()) for one in core.cache.tiers.order]
    return {
        "hits": [(one.dialogue, one.turn, one.prompt, one.hit) for one in served],
        "counters": dict(+counters),
        "stats": replace(stats, refresh_seconds=0.0),
        "order": order,
        "rows": core.cache.rows.balance(),
    }


@pytest.mark.parametrize("eviction", ["lru", "cost", "coverage"])
@pytest.mark.parametrize("arm", list(ARMS))
def test_hits_and_evictions_are_those_of_the_engine(arm: str, eviction: str) -> None:
    options, bench = options_of(arm, eviction), Bench(NAME)
    core, _ = build_core(host_of(NAME), replace(options, poison=True))
    wanted = facts(core, replay(core, bench.prepare, DIALOGUES, 4, Real()))
    core.close()
    clock = Clock()
    host = SimulatedHost(host_of(NAME).layout, COSTS, clock)
    simulated, _ = build_core(host, options)
    simulated.runner.decoder = SimulatedDecoder(host, COSTS, clock)
    found = facts(simulated, replay(simulated, bench.prepare, DIALOGUES, 4, VirtualTime(clock, COSTS)))
    simulated.close()
    assert found == wanted
    assert wanted["counters"]["states_evicted"] > 0
    assert sum(hit for *_, hit in wanted["hits"]) > 0
    assert simulated.runner.slots.temporal(0).device == torch.device("meta")
