"""The connector's halves against hand-made requests and pages, without an engine."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdover.arch.layout import RecurrentLayer, StateLayout
from holdover.codec import Codec
from holdover.errors import CheckpointMismatchError, ConfigError
from holdover.integrations.vllm.config import TierConfig
from holdover.integrations.vllm.connector.groups import CacheGroups, CacheLayer
from holdover.integrations.vllm.connector.metadata import Blocks, Load, RankReport, Save, StepPlan, StepReport
from holdover.integrations.vllm.connector.pages import Pages, by_token
from holdover.integrations.vllm.connector.prefixes import Prefixes
from holdover.integrations.vllm.connector.scheduler import TierScheduler
from holdover.integrations.vllm.connector.setup import Setup
from holdover.integrations.vllm.connector.worker import TierWorker
from holdover.state import SlotPool
from holdover.state.key import chain_of

BLOCK, NUM_BLOCKS = 4, 12
LAYOUT = StateLayout((RecurrentLayer(0, "gdn", 2, 2, 8, 16, "head", 48, 4),), conv_dtype="float32")
# groups 0 and 1: attention of layer 1, state of layer 0
STATE_SPEC = SimpleNamespace(shapes=((48, 3), (2, 16, 8)), dtypes=(torch.float32, torch.float32))
GROUPS = CacheGroups(
    (CacheLayer("model.layers.0.linear_attn", 0, 1, STATE_SPEC),),
    (CacheLayer("model.layers.1.self_attn", 1, 0, SimpleNamespace(page_size_bytes=2 * 4 * 6 * 4)),),
    BLOCK,
    NUM_BLOCKS,
)


def setup(element: Any = "full", above: int = 0, **config: Any) -> Setup:
    config = {"host_budget": 1 << 20} | config
    return Setup(TierConfig(**config), GROUPS, (Codec(LAYOUT, element=element),), 0, "identity", above)


def caches() -> dict[str, torch.Tensor]:
    """Pages that differ everywhere, with padding behind the state."""
    size = sum(prod(shape) * 4 for shape in STATE_SPEC.shapes)
    pages = torch.empty(NUM_BLOCKS, 1, 1, size + 64, dtype=torch.int8)
    pages[..., :size] = torch.randn(NUM_BLOCKS, 1, 1, size // 4).view(torch.int8)
    return {"model.layers.0.linear_attn": pages, "model.layers.1.self_attn": torch.randn(NUM_BLOCKS, 2, BLOCK, 6)}


def request(name: str, tokens: list[int], salt: str | None = None, **changes: Any) -> Any:
    fields = {
        **{"request_id": name, "all_token_ids": tokens, "num_tokens": len(tokens), "cache_salt": salt},
        **{"mm_features": [], "prompt_embeds": None, "lora_request": None, "skip_reading_prefix_cache": False},
        **{"num_computed_tokens": len(tokens) - 1, "status": SimpleNamespace(name="FINISHED_STOPPED")},
    }
    return SimpleNamespace(**fields | changes)


def offer(name: str, depth: int, state: int, rows: list[int]) -> Any:
    """A step that leaves a boundary state in block ``state`` of group 1."""
    ids = (rows, [0] * (len(rows) - 1) + [state])
    return SimpleNamespace(
        boundary_state_offloads={name: [(1, state, depth)]}, get_block_ids=lambda asked: ids if asked == name else None
    )


def keep(scheduler: TierScheduler, name: str, tokens: list[int], depth: int, salt: str | None = None) -> list[Save]:
    """Admit a request, compute it, and let what was planned arrive in host memory."""
    made = request(name, tokens, salt)
    scheduler.lookup(made, 0)
    scheduler.admit(made, ([], []), 0)
    saves = scheduler.plan(offer(name, depth, 7, list(range(1, len(tokens) // BLOCK + 1)))).saves
    arrive(scheduler, saves)
    return saves


def arrive(scheduler: TierScheduler, saves: list[Save], *ranks: int) -> None:
    names = [save.name for save in saves]
    scheduler.absorb(StepReport({rank: RankReport(settled=names, arrived=names) for rank in ranks or (0,)}))


def test_an_entry_is_found_by_a_longer_request_and_continued() -> None:
    scheduler, tokens = TierScheduler(setup()), list(range(20))
    (first,) = keep(scheduler, "a", tokens[:9], 8)
    assert (first.name.depth, first.name.parent_depth, first.blocks) == (8, 0, Blocks({1: 7}, {0: [1, 2]}))
    longer = request("b", tokens)
    assert scheduler.lookup(longer, 0) == 8
    assert scheduler.lookup(longer, 4) == 4
    scheduler.admit(longer, ([1, 2], [0, 3]), 4)
    plan = scheduler.plan(offer("b", 16, 7, [1, 2, 3, 4]))
    assert plan.loads == [Load("b", first.name, 4, Blocks({1: 3}, {0: [2]}))]
    (second,) = plan.saves
    assert (second.name.parent_depth, second.name.parent_key) == (8, first.name.key)
    assert second.blocks == Blocks({1: 7}, {0: [3, 4]})
    assert scheduler.plan(None) == StepPlan()


def test_at_least_one_token_is_left_to_compute() -> None:
    scheduler = TierScheduler(setup())
    keep(scheduler, "a", list(range(9)), 8)
    assert scheduler.lookup(request("b", list(range(8))), 0) == 0
    assert scheduler.lookup(request("c", list(range(9))), 0) == 8


def test_other_tokens_salts_and_inputs_find_nothing() -> None:
    scheduler, tokens = TierScheduler(setup()), list(range(9))
    keep(scheduler, "a", tokens, 8)
    assert scheduler.lookup(request("b", [*tokens[:7], 99, 8]), 0) == 0
    assert scheduler.lookup(request("c", tokens, "tenant"), 0) == 0
    for number, changes in enumerate(
        ({"mm_features": [1]}, {"prompt_embeds": 1}, {"lora_request": 1}, {"skip_reading_prefix_cache": True})
    ):
        assert scheduler.lookup(request(f"d{number}", tokens, **changes), 0) == 0
    assert scheduler.lookup(request("e", tokens), 0) == 8


def test_an_entry_that_cannot_be_loaded_is_not_offered_again() -> None:
    scheduler, tokens = TierScheduler(setup()), list(range(20))
    keep(scheduler, "a", tokens[:5], 4)
    (deep,) = keep(scheduler, "b", tokens[:9], 8)
    again = request("c", tokens)
    assert scheduler.lookup(again, 0) == 8
    scheduler.absorb(StepReport({0: RankReport(unusable=[deep.name])}))
    assert scheduler.lookup(again, 0) == 4
    # and is kept anew when its tokens are computed again
    assert [save.name.depth for save in keep(scheduler, "d", tokens[:9], 8)] == [8]
    assert scheduler.lookup(again, 0) == 8


def test_what_is_on_its_way_is_not_kept_twice() -> None:
    scheduler, made = TierScheduler(setup()), request("a", list(range(9)))
    scheduler.lookup(made, 0)
    scheduler.admit(made, ([], []), 0)
    (save,) = scheduler.plan(offer("a", 8, 7, [1, 2])).saves
    assert scheduler.catalogue.has_pending
    assert scheduler.plan(offer("a", 8, 7, [1, 2])).saves == []
    scheduler.absorb(StepReport({0: RankReport(settled=[save.name])}))
    assert not scheduler.catalogue.has_pending
    assert scheduler.counters["save_present"] == 1


def test_after_a_reset_nothing_is_found() -> None:
    scheduler, tokens = TierScheduler(setup()), list(range(9))
    keep(scheduler, "a", tokens, 8)
    scheduler.reset()
    assert scheduler.lookup(request("b", tokens), 0) == 0
    keep(scheduler, "c", tokens, 8)
    assert scheduler.lookup(request("d", tokens), 0) == 8


def test_losses_travel_with_what_was_computed_after_them() -> None:
    scheduler, tokens = TierScheduler(setup("int8")), list(range(40))
    (exact,) = keep(scheduler, "a", tokens[:9], 8)
    assert exact.name.losses == 0
    second = request("b", tokens[:18])
    assert scheduler.lookup(second, 0) == 8
    scheduler.admit(second, ([1, 2], [0, 3]), 8)
    (save,) = scheduler.plan(offer("b", 16, 7, [1, 2, 3, 4])).saves
    assert (save.name.losses, str(save.lineage)) == (1, "nr(1)")
    # a request that finds these tokens in vLLM's own cache continues the same past
    third = request("c", tokens)
    scheduler.lookup(third, 16)
    scheduler.admit(third, ([], []), 0)
    (save,) = scheduler.plan(offer("c", 20, 7, [1, 2, 3, 4, 5])).saves
    assert save.name.losses == 1


@pytest.mark.parametrize("salt", ["exact", "exact:tenant"])
def test_exact_requests_neither_take_nor_give_where_records_lose(salt: str) -> None:
    lossy, lossless = TierScheduler(setup("int8")), TierScheduler(setup())
    assert keep(lossy, "a", list(range(9)), 8, salt) == []
    assert lossy.counters["miss_exact"] == lossy.counters["save_exact"] == 1
    assert len(keep(lossless, "a", list(range(9)), 8, salt)) == 1


def test_what_is_not_forgotten_yet_is_not_left_out() -> None:
    scheduler = TierScheduler(setup(above=8))
    assert keep(scheduler, "a", list(range(9)), 8) == []
    assert len(keep(scheduler, "b", list(range(13)), 12)) == 1


@pytest.mark.parametrize("conv_first", [True, False])
def test_pages_come_back_as_they_were(conv_first: bool) -> None:
    shapes = ((48, 3) if conv_first else (3, 48), (2, 16, 8))
    spec = SimpleNamespace(shapes=shapes, dtypes=STATE_SPEC.dtypes)
    layers = caches()
    groups = replace(GROUPS, recurrent=(replace(GROUPS.recurrent[0], spec=spec),))
    pages, pool = Pages(layers, groups, LAYOUT), SlotPool(LAYOUT, 1)
    before = {name: cache.clone() for name, cache in layers.items()}
    source, target = Blocks({1: 5}, {0: [2, 3]}), Blocks({1: 9}, {0: [8, 1]})
    pages.read_state(source, 8, pool, 1)
    rows = pages.read_rows(source)
    assert rows.shape == (2, pages.block_bytes)
    pages.write_state(pool, 1, target, 8)
    # an entry of 5 tokens has the whole of its two blocks
    pages.write_rows(pages.by_block(by_token(rows, 5), 2), target.rows)
    state, attention = layers.values()
    size = sum(prod(shape) * 4 for shape in shapes)
    assert torch.equal(state[9, ..., :size], before["model.layers.0.linear_attn"][5, ..., :size])
    assert torch.equal(attention[[8, 1]], before["model.layers.1.self_attn"][[2, 3]])
    state[9] = before["model.layers.0.linear_attn"][9]
    attention[[8, 1]] = before["model.layers.1.self_attn"][[8, 1]]
    assert all(torch.equal(layers[name], before[name]) for name in layers), "other blocks were touched"
    for blocks in (1, 3):
        with pytest.raises(CheckpointMismatchError, match="bytes of rows"):
            pages.by_block(by_token(rows, 5), blocks)


def test_a_state_has_the_cores_axes() -> None:
    """On a CPU vLLM keeps [H, d_k, d_v] in pages that it declares as [H, d_v, d_k], and conv inputs oldest first."""
    layers = caches()
    pages, pool = Pages(layers, GROUPS, LAYOUT), SlotPool(LAYOUT, 1)
    pages.read_state(Blocks({1: 5}, {0: []}), 4, pool, 1)
    raw = layers["model.layers.0.linear_attn"][5].flatten()
    assert torch.equal(pool.conv(0)[1], raw[: 48 * 3 * 4].view(torch.float32).view(48, 3).T)
    assert torch.equal(pool.temporal(0)[1].flatten(), raw[48 * 3 * 4 :][: 2 * 8 * 16 * 4].view(torch.float32))


def test_pages_of_another_state_are_refused() -> None:
    spec = SimpleNamespace(shapes=((24, 6), (2, 16, 8)), dtypes=STATE_SPEC.dtypes)
    with pytest.raises(ConfigError, match="not the model's state"):
        Pages(caches(), replace(GROUPS, recurrent=(replace(GROUPS.recurrent[0], spec=spec),)), LAYOUT)


def drive(worker: TierWorker, plan: StepPlan, saving: int = 0) -> tuple[set[str], set[str], list[StepReport]]:
    """One step, then empty ones until everything has settled, and what was being saved before."""
    worker.start(plan)
    worker.save(plan)
    ended, failed, reports = set[str](), set[str](), []
    waiting, unsettled = len(plan.loads), len(plan.saves) + saving
    while waiting or unsettled:
        _, now, wrong = worker.finish()
        ended, failed, waiting = ended | now, failed | wrong, waiting - len(now)
        if report := worker.report():
            reports.append(report)
            unsettled -= len(report.ranks[worker.rank].settled)
    return ended, failed, reports


def test_worker_and_scheduler_restore_a_chain(tmp_path: Path) -> None:
    tier = setup(host_budget=None, spill_dir=tmp_path / "spill")
    scheduler, worker, layers = TierScheduler(tier), TierWorker(tier), caches()
    worker.register(layers, {})
    tokens = list(range(20))
    try:
        for name, length, depth, state, rows in (("a", 9, 8, 5, [1, 2]), ("b", 18, 16, 6, [1, 2, 3, 4])):
            made = request(name, tokens[:length])
            scheduler.lookup(made, 0)
            scheduler.admit(made, ([], []), 0)
            drive(worker, scheduler.plan(offer(name, depth, state, rows)))
        before = {name: cache.clone() for name, cache in layers.items()}
        for cache in layers.values():
            cache.fill_(99)
        # a scheduler and a worker that saw nothing of this
        scheduler, again = TierScheduler(tier), request("c", tokens)
        assert scheduler.lookup(again, 4) == 12
        scheduler.admit(again, ([11, 7, 8, 9], [0, 0, 0, 10]), 12)
        ended, failed, _ = drive(worker, scheduler.plan(None))
    finally:
        worker.close()
    assert (ended, failed) == ({"c"}, set())
    state, attention = layers.values()
    size = sum(prod(shape) * 4 for shape in STATE_SPEC.shapes)
    assert torch.equal(state[10, ..., :size], before["model.layers.0.linear_attn"][6, ..., :size])
    assert torch.equal(attention[[7, 8, 9]], before["model.layers.1.self_attn"][[2, 3, 4]])
    assert bool((attention[[1, 2, 11]] == 99).all()), "blocks that vLLM had itself were written"


def test_a_chain_with_a_gap_fails_the_load_and_nothing_else(tmp_path: Path) -> None:
    tier = setup(host_budget=None, spill_dir=tmp_path / "spill")
    scheduler, worker = TierScheduler(tier), TierWorker(tier)
    worker.register(caches(), {})
    tokens = list(range(20))
    try:
        for name, length, depth in (("a", 9, 8), ("b", 18, 16)):
            made = request(name, tokens[:length])
            scheduler.lookup(made, 0)
            scheduler.admit(made, ([], []), 0)
            drive(worker, scheduler.plan(offer(name, depth, 6, list(range(1, depth // BLOCK + 1)))))
        for file in tmp_path.rglob("8-*.entry"):
            file.unlink()
        again = request("c", tokens)
        assert scheduler.lookup(again, 0) == 16
        scheduler.admit(again, ([1, 2, 3, 4], [0, 0, 0, 10]), 16)
        ended, failed, reports = drive(worker, scheduler.plan(None))
        assert (ended, failed) == ({"c"}, {"c"})
        for report in [*reports, worker.report()]:
            if report is not None:
                scheduler.absorb(report)
        assert scheduler.lookup(again, 0) == 0
        assert worker.take_counters()["load_failed"] == 1
    finally:
        worker.close()


def test_host_memory_tells_what_it_has_and_what_left() -> None:
    size = Codec(LAYOUT).nbytes + 8 * 2 * 6 * 4
    worker, scheduler = TierWorker(setup(host_budget=size)), TierScheduler(setup(host_budget=size))
    worker.register(caches(), {})
    try:
        for name, start in (("a", 0), ("b", 100)):
            made = request(name, list(range(start, start + 9)))
            scheduler.lookup(made, 0)
            scheduler.admit(made, ([], []), 0)
            for report in drive(worker, scheduler.plan(offer(name, 8, 6, [1, 2])))[2]:
                scheduler.absorb(report)
    finally:
        worker.close()
    assert scheduler.lookup(request("c", list(range(9))), 0) == 0
    assert scheduler.lookup(request("d", list(range(100, 109))), 0) == 8


def test_a_request_that_ends_leaves_its_state_at_any_depth(tmp_path: Path) -> None:
    tier, layers = setup(host_budget=None, spill_dir=tmp_path / "spill"), caches()
    scheduler, worker = TierScheduler(tier), TierWorker(tier)
    worker.register(layers, {})
    tokens = list(range(40))
    try:
        for name, length, blocks in (("a", 11, ([1, 2, 3], [0, 0, 5])), ("b", 19, ([1, 2, 4, 6, 7], [0, 0, 0, 0, 8]))):
            made = request(name, tokens[:length])
            assert scheduler.lookup(made, 0) == {"a": 0, "b": 10}[name]
            scheduler.admit(made, ([], []), 0)
            assert scheduler.finish(made, blocks)
            plan = scheduler.plan(None)
            (save,) = plan.saves
            assert (save.name.depth, save.ended) == (length - 1, name)
            worker.save(plan)
            # its blocks are vLLM's again within the step
            assert worker.finish()[0] == {name}
            assert drive(worker, StepPlan(), len(plan.saves))[0] == set()
        # the second continues the first, whose last block it has whole
        assert (save.name.parent_depth, save.blocks) == (10, Blocks({1: 8}, {0: [4, 6, 7]}))
        before = {name: cache.clone() for name, cache in layers.items()}
        for cache in layers.values():
            cache.fill_(99)
        scheduler, again = TierScheduler(tier), request("c", tokens)
        assert scheduler.lookup(again, 4) == 14
        scheduler.admit(again, ([11, 2, 9, 10, 3], [0, 0, 0, 0, 6]), 14)
        ended, failed, _ = drive(worker, scheduler.plan(None))
    finally:
        worker.close()
    assert (ended, failed) == ({"c"}, set())
    state, attention = layers.values()
    size = sum(prod(shape) * 4 for shape in STATE_SPEC.shapes)
    assert torch.equal(state[6, ..., :size], before["model.layers.0.linear_attn"][8, ..., :size])
    assert torch.equal(attention[[2, 9, 10, 3]], before["model.layers.1.self_attn"][[2, 4, 6, 7]])
    assert bool((attention[[11, 1]] == 99).all()), "blocks that vLLM had itself were written"


@pytest.mark.parametrize(
    ("changes", "settings", "kept"),
    [
        ({}, {}, True),
        ({"status": SimpleNamespace(name="FINISHED_ABORTED")}, {}, False),
        ({}, {"ends": False}, False),
        # a step that was scheduled ahead went beyond the tokens that are known
        ({"num_computed_tokens": 12}, {}, False),
        ({"num_computed_tokens": 3}, {}, False),
    ],
)
def test_ends_that_are_not_kept_hold_no_blocks(changes: dict[str, Any], settings: dict[str, Any], kept: bool) -> None:
    scheduler, made = TierScheduler(setup(**settings)), request("a", list(range(11)), **changes)
    scheduler.lookup(made, 0)
    scheduler.admit(made, ([], []), 0)
    assert scheduler.finish(made, ([1, 2, 3], [0, 0, 5])) == kept
    assert len(scheduler.plan(None).saves) == kept


def test_keys_are_those_of_the_tokens_in_whatever_order_they_are_asked_for() -> None:
    tokens = list(range(50))
    prefixes = Prefixes(b"space", tokens, 8)
    for depth in (17, 3, 40, 16, 3, 0, 50):
        assert prefixes.key(depth) == chain_of(b"space", tokens[:depth]).key()


def test_what_vllm_has_within_a_block_may_be_deeper() -> None:
    scheduler, tokens = TierScheduler(setup()), list(range(40))
    keep(scheduler, "a", tokens[:9], 8)
    again = request("b", tokens)
    assert scheduler.lookup(again, 0) == 8
    scheduler.admit(again, ([], []), 0)
    assert (scheduler.counters["hit"], scheduler.counters["miss_not_needed"]) == (0, 1)
    assert scheduler.plan(None).loads == []
