"""Too little memory changes when things are computed, never what: no NaN, no livelock, no leak."""

import pytest

from holdover.engine.build import build_core
from holdover.engine.options import EngineOptions
from holdover.errors import CapacityError, ConfigError
from holdover.prefix.policies import AnyOf, EndOfRequest, EveryN, Wanted
from holdover.state import SlotPool
from holdover.store import LeaseState
from tests.arch.table import ARCHITECTURES
from tests.engine.harness import TOY, Bench, assert_greedy, host_of, prompt_of
from tests.engine.small import SMALL
from tests.engine.toy import VOCAB

BUSY = AnyOf((EndOfRequest(), EveryN(4), Wanted()))


@pytest.mark.parametrize(
    ("name", "slots", "rows"), [*((name, 8, 45) for name in ARCHITECTURES), *((name, 1, 40) for name in SMALL)]
)
def test_networks(name: str, slots: int, rows: int) -> None:
    bench = Bench(name, slots=slots, rows=rows, max_running=4, policy=BUSY)
    for i in range(6):
        bench.add(prompt_of(3 + 5 * (i % 4), seed=i % 3), tokens=8)
    bench.run(limit=200)
    bench.assert_all_greedy()
    assert (bench.core.stats.preemptions > 0) == (slots > 1)
    bench.assert_empty()


@pytest.mark.parametrize("slots", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [20, 33, 60, 400])
@pytest.mark.parametrize("policy", [BUSY, EndOfRequest()], ids=["busy", "end"])
def test_many_requests(slots: int, rows: int, policy) -> None:
    """More sequences than slots, more tokens than rows; the number of steps is bounded by the work."""
    bench = Bench(TOY, slots=slots, rows=rows, max_running=6, chunk=5, policy=policy)
    for i in range(24):
        bench.add(prompt_of(1 + i % 11, seed=i % 5, vocab=VOCAB), tokens=1 + i % 8, request={"use_cache": i % 4 != 3})
    bench.run(limit=600)
    assert len(bench.outputs) == 24
    bench.assert_all_greedy()
    if rows == 20 and slots > 2:
        assert bench.core.stats.preemptions
    bench.assert_empty()


def test_the_oldest_request_always_goes_on() -> None:
    """It is never preempted, and each step computes something for it."""
    bench = Bench(TOY, slots=6, rows=30, max_running=6, chunk=4)
    for i in range(10):
        bench.add(prompt_of(6, seed=i, vocab=VOCAB), tokens=16)
    progress: dict[str, int] = {}
    while bench.core.has_work:
        bench.step()
        if running := bench.running():
            oldest = running[0]
            assert oldest.computed > progress.get(oldest.request.id, 0)
            progress[oldest.request.id] = oldest.computed
    bench.assert_all_greedy()
    assert bench.core.stats.preemptions


def test_a_preempted_request_resumes_where_it_was() -> None:
    bench = Bench(TOY, slots=6, rows=24, max_running=2, chunk=8)
    bench.add(prompt_of(4, seed=1, vocab=VOCAB), tokens=14)
    second = bench.add(prompt_of(4, seed=2, vocab=VOCAB), tokens=14)
    bench.run(limit=100)
    bench.assert_all_greedy()
    assert bench.core.stats.preemptions
    # its cache report is that of its first admission
    assert bench.outputs[second].cache.state_depth == 0


def test_a_request_that_needs_the_whole_pool() -> None:
    bench = Bench(TOY, slots=4, rows=32, chunk=8)
    for i in range(3):
        bench.add(prompt_of(4, seed=i, vocab=VOCAB), tokens=4)
    bench.add(prompt_of(20, vocab=VOCAB), tokens=12)
    bench.run(limit=100)
    bench.assert_all_greedy()


def test_one_slot() -> None:
    """The only slot goes from request to cache and back; a conversation still resumes."""
    bench = Bench(TOY, slots=1, rows=200, policy=BUSY)
    first = bench.serve(prompt_of(9, vocab=VOCAB))
    assert bench.cache.tiers.native.count(LeaseState.CACHED) == 1
    second = bench.serve((*first.prompt_token_ids, *first.token_ids))
    assert second.cache.state_depth == len(first.prompt_token_ids) + len(first.token_ids) - 1
    bench.assert_all_greedy()
    # while it ran there was no room for another
    assert bench.core.stats.checkpoints_skipped


def test_a_budget_of_one_entry_less_a_byte_stores_nothing_and_serves() -> None:
    """Room for the live slot, and for a checkpoint but one byte."""
    bench = Bench(TOY)
    layout = bench.host.layout
    options = EngineOptions(
        state_budget=SlotPool.bytes_for(layout.state, 2) - 1, kv_budget=1 << 20, policy=BUSY, poison=True, chunk_size=8
    )
    bench.core, _ = build_core(bench.host, options)
    bench.add(prompt_of(9, vocab=VOCAB), request={"checkpoint_at": (5,)})
    while bench.core.has_work:
        bench.step()
        assert bench.cache.tiers.native.count(LeaseState.CACHED) == (not bench.core.has_work)
    assert bench.core.stats.checkpoints_skipped
    bench.assert_all_greedy()


def test_a_budget_below_one_live_slot_is_refused() -> None:
    layout = host_of(TOY).layout
    with pytest.raises(ConfigError, match=str(SlotPool.bytes_for(layout.state, 1))):
        build_core(host_of(TOY), EngineOptions(state_budget=SlotPool.bytes_for(layout.state, 1) - 1))


def test_pinned_checkpoints_stop_nobody() -> None:
    bench = Bench(TOY, slots=2, rows=100, policy=BUSY)
    bench.serve(prompt_of(6, vocab=VOCAB))
    pinned = list(bench.cache.tiers.order)
    for checkpoint in pinned:
        checkpoint.pins += 1
    assert len(pinned) == bench.cache.tiers.native.pool.num_slots
    output = bench.serve(prompt_of(6, seed=1, vocab=VOCAB))
    # nothing can run at all: the request says so instead of waiting for ever
    assert (output.finish_reason, type(output.error)) == ("error", CapacityError)
    for checkpoint in pinned[1:]:
        checkpoint.pins -= 1
    # one slot to run in, none to keep a state in
    output = bench.serve(prompt_of(6, seed=1, vocab=VOCAB), request={"checkpoint_at": (3,)})
    assert_greedy(TOY, output)
    assert bench.core.stats.checkpoints_skipped
    for checkpoint in pinned[:1]:
        checkpoint.pins -= 1
    bench.assert_empty()
