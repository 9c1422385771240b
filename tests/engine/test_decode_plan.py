"""How decode runs: what follows from the options, what is refused, and what its memory is (class 18)."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from holdover.arch.layout import StateLayout
from holdover.arch.registry import layout_from_config
from holdover.engine.build import build_core
from holdover.engine.decode.plan import DecodePlan, plan_decode
from holdover.engine.memory import StateNeeds, plan_memory
from holdover.engine.options import EngineOptions
from holdover.errors import ConfigError
from holdover.state import SlotPool
from holdover.store import KVPool
from tests.arch.fixtures import CONFIGS, published
from tests.arch.table import ARCHITECTURES
from tests.engine.harness import Bench, assert_greedy, host_of, prompt_of
from tests.engine.test_memory import layout_of

CPU, GPU = torch.device("cpu"), torch.device("cuda")
STATE = layout_of("qwen3_5").state
FP64, BF16 = (replace(STATE, temporal_dtype=dtype) for dtype in ("float64", "bfloat16"))
ODD = replace(STATE, layers=(replace(STATE.layers[0], d_k=24),))


@pytest.mark.parametrize(
    ("device", "options", "plan"),
    [
        (CPU, {}, DecodePlan()),
        (CPU, {"mode": "dense"}, DecodePlan()),
        (CPU, {"mode": "deferred"}, DecodePlan(8)),
        (CPU, {"merge_interval": 3}, DecodePlan(3)),
        (CPU, {"mode": "deferred", "merge_interval": 1}, DecodePlan(1)),
        (CPU, {"drafts": 3}, DecodePlan(16, drafts=3)),
        (CPU, {"drafts": 15}, DecodePlan(17, drafts=15)),
        (CPU, {"drafts": 62}, DecodePlan(64, drafts=62)),
        (CPU, {"mode": "deferred", "drafts": 2, "merge_interval": 4}, DecodePlan(4, drafts=2)),
        (GPU, {}, DecodePlan(8, 12, on_device=True, use_graphs=True)),
        (GPU, {"use_graphs": False}, DecodePlan(8, 12, on_device=True)),
        (GPU, {"mode": "dense"}, DecodePlan(1, on_device=True, use_graphs=True)),
        (GPU, {"mode": "deferred"}, DecodePlan(8, on_device=True, use_graphs=True)),
        (GPU, {"drafts": 3}, DecodePlan(16, drafts=3, on_device=True, use_graphs=True)),
    ],
)
def test_what_follows_from_the_options(device: torch.device, options: dict, plan: DecodePlan) -> None:
    assert plan_decode(STATE, device, **options) == plan


@pytest.mark.parametrize("state", [FP64, BF16, ODD])
@pytest.mark.parametrize("mode", ["auto", "dense"])
@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_state_without_a_log_is_decoded_as_anything_else_is_run(device, mode, state: StateLayout) -> None:
    assert plan_decode(state, device, mode) == DecodePlan()


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize(
    ("state", "options", "message"),
    [
        (STATE, {"mode": "dense", "drafts": 3}, "speculation takes rejected drafts .* --decode deferred or auto"),
        (STATE, {"mode": "dense", "merge_interval": 4}, "a merge interval is for .* --decode deferred or auto"),
        (STATE, {"drafts": 3, "merge_interval": 4}, "merge interval 4: draft at most 2, or .* of at least 5"),
        (STATE, {"drafts": 3, "merge_interval": 1}, "merge interval 1: draft at most 0, or .* of at least 5"),
        (STATE, {"drafts": 63}, "63 drafts .* merge interval 64: draft at most 62$"),
        (STATE, {"merge_interval": 65}, "merge interval is 65, want 1 to 64"),
        (FP64, {"mode": "deferred"}, "an fp32 state, and this one is float64: choose --decode dense$"),
        (BF16, {"merge_interval": 4}, "this one is bfloat16: choose --decode dense$"),
        (BF16, {"drafts": 3}, "this one is bfloat16: choose --decode dense and --speculate off"),
        (ODD, {"mode": "deferred"}, "d_k is 24, want a power of two: choose --decode dense$"),
        (ODD, {"drafts": 3}, "d_k is 24, .*: choose --decode dense and --speculate off"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_way_out(device, state: StateLayout, options, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        plan_decode(state, device, **options)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decode": "eager"}, "decode must be one of auto, dense, deferred, got 'eager'"),
        ({"speculate": "mtp9"}, "speculate must be one of .*ngram.*, got 'mtp9'"),
        ({"merge_interval": 0}, "merge_interval must be at least 1"),
        ({"draft_tokens": 0}, "draft_tokens must be at least 1"),
    ],
)
def test_options_that_cannot_be(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineOptions(**options)


# memory (class 18)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("merge_interval", [None, 1, 2, 8, 64])
def test_a_budget_gives_the_slots_that_it_has_room_for(name: str, merge_interval: int | None) -> None:
    layout, needs = layout_of(name), StateNeeds(merge_interval=merge_interval)
    sizes = {"kv_budget": 1 << 20, "free_bytes": 1 << 30, "max_context": 512, "needs": needs}
    for slots in (1, 2, 7):
        exact = SlotPool.bytes_for(layout.state, slots, merge_interval)
        assert SlotPool(layout.state, slots, merge_interval=merge_interval).nbytes == exact
        for spare in (0, 1):
            memory = plan_memory(layout, state_budget=exact + spare, **sizes)
            assert (memory.num_slots, memory.state_bytes) == (slots, exact)
        if slots > 1:
            assert plan_memory(layout, state_budget=exact - 1, **sizes).num_slots == slots - 1
    need = SlotPool.bytes_for(layout.state, 1, merge_interval)
    with pytest.raises(ConfigError, match=rf"{need - 1} bytes is too small.* {need} bytes.*--state-budget"):
        plan_memory(layout, state_budget=need - 1, **sizes)


@pytest.mark.parametrize(
    ("options", "merge_interval"),
    [
        ({}, None),
        ({"decode": "deferred", "merge_interval": 1}, 1),
        ({"decode": "deferred"}, 8),
        ({"speculate": "ngram"}, 16),
        ({"speculate": "ngram", "draft_tokens": 62}, 64),
    ],
)
def test_an_engine_allocates_what_was_estimated(options: dict, merge_interval: int | None) -> None:
    host = host_of("small-qwen3_5")
    need = SlotPool.bytes_for(host.layout.state, 1, merge_interval)
    kv = {"kv_budget": KVPool.bytes_for(host.layout.kv, 100)}
    with pytest.raises(ConfigError, match=rf"{need - 1} bytes is too small.*{need} bytes"):
        build_core(host, EngineOptions(state_budget=need - 1, **kv, **options))
    pool = build_core(host, EngineOptions(state_budget=need, **kv, **options))[0].cache.tiers.native.pool
    assert (pool.num_slots, pool.nbytes) == (1, need)
    log = pool.deferred
    assert (log is None) == (merge_interval is None)
    tensors = pool._tensors + ([] if log is None else [*log.tensors, *log.cursor, *log.empty_cursor])
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
    assert sum(size for address, size in storages.items() if address) == need


def test_one_slot_with_a_log_serves_a_conversation() -> None:
    bench = Bench("small-qwen3_5", slots=1, decode="deferred", merge_interval=4)
    first = bench.serve(prompt_of(5), tokens=6)
    output = bench.serve((*first.prompt_token_ids, *first.token_ids, 1), tokens=6)
    assert re.fullmatch("hit: resumed at 10 of 12 tokens", output.cache.reason)
    assert_greedy(bench.name, output)
    bench.assert_empty()


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.json")))
def test_published_models_may_defer_but_for_one(name: str) -> None:
    state = layout_from_config(published(name)).state
    if name != "olmo-hybrid-7b":
        assert plan_decode(state, CPU, "deferred").merge_interval == 8
        return
    assert plan_decode(state, GPU, "auto") == DecodePlan()
    for options in ({"mode": "deferred"}, {"mode": "auto", "drafts": 3}):
        with pytest.raises(ConfigError, match="d_k is 96, want a power of two: choose --decode dense"):
            plan_decode(state, CPU, **options)
