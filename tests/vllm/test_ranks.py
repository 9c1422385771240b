"""Tensor parallelism without an engine: what the ranks' halves agree on, and what each of them keeps."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from holdover.arch.layout import RecurrentLayer, StateLayout
from holdover.codec import Codec
from holdover.errors import ConfigError
from holdover.integrations.vllm.config import TierConfig
from holdover.integrations.vllm.connector.metadata import StepPlan
from holdover.integrations.vllm.connector.scheduler import TierScheduler
from holdover.integrations.vllm.connector.setup import Setup
from holdover.integrations.vllm.connector.shard import shard_layout, shard_plan
from holdover.integrations.vllm.connector.worker import TierWorker
from holdover.retention import RetentionPlan
from holdover.state import SlotPool
from tests.vllm.test_connector import GROUPS, STATE_SPEC, caches, offer, request

RANKS = 2
# of the whole model; what a rank has of it is the state of the caches in test_connector
WHOLE = StateLayout((RecurrentLayer(0, "gdn", 4, 4, 8, 16, "head", 96, 4),), conv_dtype="float32")
PART = shard_layout(WHOLE, RANKS)
SPILL: dict[str, Any] = {"host_budget": None}


def plan(*kept: bool) -> RetentionPlan:
    horizons, retained = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor(kept)
    return RetentionPlan("model", WHOLE.shape_digest, 4, "softplus", 0.0, 0.01, (horizons,), (retained,))


def setup(rank: int, whole: RetentionPlan | None = None, **config: Any) -> Setup:
    plans = [None if whole is None else shard_plan(whole, PART, other, RANKS) for other in range(RANKS)]
    codecs = tuple(Codec(PART, own) for own in plans)
    return Setup(TierConfig(**{"host_budget": 1 << 20} | config), GROUPS, codecs, rank, "identity", 0)


class Ranks:
    """A scheduler and two workers, whose outputs vLLM's own aggregator joins."""

    def __init__(self, whole: RetentionPlan | None = None, **config: Any) -> None:
        self.scheduler = TierScheduler(setup(0, whole, **config))
        self.workers = [TierWorker(setup(rank, whole, **config)) for rank in range(RANKS)]
        self.caches = [caches() for _ in self.workers]
        for worker, own in zip(self.workers, self.caches, strict=True):
            worker.register(own, {})
        self._joined = KVOutputAggregator(RANKS)

    def step(self, plan: StepPlan) -> KVConnectorOutput:
        """One step of all ranks, as the scheduler hears of it."""
        outputs = []
        for worker in self.workers:
            worker.start(plan)
            worker.save(plan)
            read, ended, failed = worker.finish()
            found = KVConnectorOutput(
                finished_sending=read,
                finished_recving=ended,
                failed_recving=failed,
                kv_connector_worker_meta=worker.report(),
            )
            outputs.append(ModelRunnerOutput.with_kv_conn_output_only(found))
        joined = self._joined.aggregate(outputs)
        assert joined is not None
        assert joined.kv_connector_output is not None
        if report := joined.kv_connector_output.kv_connector_worker_meta:
            self.scheduler.absorb(report)
        return joined.kv_connector_output

    def keep(self, name: str, tokens: list[int], depth: int) -> None:
        made = request(name, tokens)
        self.scheduler.lookup(made, 0)
        self.scheduler.admit(made, ([], []), 0)
        self.step(self.scheduler.plan(offer(name, depth, 7, list(range(1, len(tokens) // 4 + 1)))))
        while self.scheduler.catalogue.has_pending:
            self.step(StepPlan())

    def load(self, name: str, tokens: list[int], blocks: Any) -> tuple[set[str], set[str]]:
        """Requests whose load ended on all ranks, and those of them that failed on any."""
        made = request(name, tokens)
        found = self.scheduler.lookup(made, 0)
        assert found
        self.scheduler.admit(made, blocks, found)
        ended, failed, step = set[str](), set[str](), self.scheduler.plan(None)
        while not ended:
            output, step = self.step(step), StepPlan()
            ended, failed = set(output.finished_recving or ()), set(output.failed_recving)
        return ended, failed

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


@pytest.fixture
def spill(tmp_path: Path) -> dict[str, Any]:
    return SPILL | {"spill_dir": tmp_path / "spill"}


def test_every_rank_restores_its_own_part(spill: dict[str, Any]) -> None:
    ranks = Ranks(**spill)
    try:
        ranks.keep("a", list(range(9)), 8)
        before = [{name: cache.clone() for name, cache in own.items()} for own in ranks.caches]
        assert ranks.load("b", list(range(20)), ([3, 4], [0, 9])) == ({"b"}, set())
    finally:
        ranks.close()
    size = sum(shape[0] * shape[1] * (shape[2] if len(shape) > 2 else 1) * 4 for shape in STATE_SPEC.shapes)
    for own, was in zip(ranks.caches, before, strict=True):
        state, attention = own.values()
        assert torch.equal(state[9, ..., :size], was["model.layers.0.linear_attn"][7, ..., :size])
        assert torch.equal(attention[[3, 4]], was["model.layers.1.self_attn"][[1, 2]])


@pytest.mark.parametrize("lost", range(RANKS))
def test_what_one_rank_lost_no_rank_has(spill: dict[str, Any], lost: int) -> None:
    ranks, tokens = Ranks(**spill), list(range(20))
    try:
        ranks.keep("a", tokens[:5], 4)
        ranks.keep("b", tokens[:13], 12)
        (gone,) = (spill["spill_dir"] / setup(lost).folder(lost)).glob("12-*.entry")
        gone.unlink()
        assert ranks.scheduler.lookup(request("c", tokens), 0) == 4
        shutil.rmtree(gone.parent)
        assert ranks.scheduler.lookup(request("d", tokens), 0) == 0
        # and it is kept anew, on both
        ranks.keep("e", tokens[:13], 12)
        assert ranks.scheduler.lookup(request("f", tokens), 0) == 12
    finally:
        ranks.close()


def test_a_rank_that_cannot_load_fails_the_load_of_all(spill: dict[str, Any]) -> None:
    ranks, tokens = Ranks(**spill), list(range(20))
    try:
        ranks.keep("a", tokens[:5], 4)
        ranks.keep("b", tokens[:13], 12)
        (damaged,) = (spill["spill_dir"] / setup(1).folder(1)).glob("12-*.entry")
        data = bytearray(damaged.read_bytes())
        data[-200] ^= 1
        damaged.write_bytes(data)
        assert ranks.load("c", tokens, ([1, 2, 3], [0, 0, 5])) == ({"c"}, {"c"})
        # what is whole on all of them is next
        assert ranks.scheduler.lookup(request("d", tokens), 0) == 4
        assert [worker.take_counters()["load_failed"] for worker in ranks.workers] == [0, 1]
    finally:
        ranks.close()


def test_blocks_of_an_end_are_free_when_both_ranks_have_read_them() -> None:
    ranks, made = Ranks(), request("a", list(range(11)))
    try:
        ranks.scheduler.lookup(made, 0)
        ranks.scheduler.admit(made, ([], []), 0)
        assert ranks.scheduler.finish(made, ([1, 2, 3], [0, 0, 5]))
        assert ranks.step(ranks.scheduler.plan(None)).finished_sending == {"a"}
    finally:
        ranks.close()


def test_a_rank_packs_the_units_of_its_heads() -> None:
    """Side by side, the ranks' records hold what the whole model's holds."""
    whole = plan(True, False, False, True)
    state = torch.randn(4, 8, 16)
    for rank in range(RANKS):
        codec, pool = setup(rank, whole).codec, SlotPool(PART, 2)
        pool.temporal(0)[1] = state[2 * rank : 2 * rank + 2]
        pool.conv(0)[1] = 0
        record = torch.empty(1, codec.nbytes, dtype=torch.uint8)
        codec.pack(pool, [1], record, [0])
        codec.unpack(record, [0], pool, [2])
        kept = whole.retained[0][2 * rank : 2 * rank + 2]
        assert torch.equal(pool.temporal(0)[2], pool.temporal(0)[1] * kept.view(2, 1, 1))


def test_ranks_may_lose_differently_and_the_whole_then_loses() -> None:
    uneven = plan(True, True, False, True)
    first, second = (setup(rank, uneven) for rank in range(RANKS))
    assert (first.codec.is_lossless, second.codec.is_lossless) == (True, False)
    assert first.losses == second.losses == 1
    assert first.codec.nbytes > second.codec.nbytes


def test_host_memory_is_shared_by_what_entries_weigh() -> None:
    parts = [setup(rank, plan(True, True, False, False), host_budget=10_000) for rank in range(RANKS)]
    first, second = (part.host_budget for part in parts)
    assert first is not None
    assert second is not None
    assert 9_990 < first + second <= 10_000
    rows = GROUPS.block_bytes
    # each has room for as many entries of one block
    assert first // (parts[0].codec.nbytes + rows) == second // (parts[1].codec.nbytes + rows) > 0


def test_heads_that_ranks_cannot_share_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 ranks cannot share the 4 heads"):
        shard_layout(WHOLE, 3)
    few = replace(WHOLE, layers=(replace(WHOLE.layers[0], key_heads=1),))
    with pytest.raises(ConfigError, match="1 key heads"):
        shard_layout(few, 2)


def test_shards_of_a_plan_make_up_the_plan() -> None:
    whole = plan(True, False, True, True)
    parts = [shard_plan(whole, PART, rank, RANKS) for rank in range(RANKS)]
    assert torch.equal(torch.cat([part.retained[0] for part in parts]), whole.retained[0])
    assert list(accumulate(part.offsets[-1] for part in parts))[-1] == whole.offsets[-1]
    assert len({part.digest for part in parts}) == RANKS
