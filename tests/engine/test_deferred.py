"""Deferred decode in the engine: whatever happens to a request, at every fill of its log, it is the uncached run."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import pytest
import torch

from holdover.engine.step import Step
from holdover.ops.conv import deferred as conv_ops
from holdover.ops.deferred import torch as ops
from holdover.prefix.policies import AnyOf, EndOfRequest, EveryN, NoCheckpoints, Wanted
from holdover.state import DeferredLog, SlotPool
from holdover.store import StateTiers
from tests.arch.table import ARCHITECTURES, VOCAB
from tests.engine.harness import (
    RTOL,
    Bench,
    assert_greedy,
    distributions,
    failing,
    prompt_of,
    reference,
)
from tests.engine.small import SMALL
from tests.engine.test_compressed import WINDOW, by_hand, plan_for
from tests.helpers import assert_close

every_family = pytest.mark.parametrize("name", SMALL)
M = 4
BUSY = AnyOf((EndOfRequest(), EveryN(4), Wanted()))


@dataclass(frozen=True)
class EveryDecoded(NoCheckpoints):
    """Keep the state after every generated token."""

    def during_decode(self, depth: int) -> bool:
        return True

    def at_end(self) -> bool:
        return True


def bench_of(name: str, tier: str = "native", **options) -> Bench:
    """An engine that defers, and keeps its checkpoints in ``tier``."""
    options = {"decode": "deferred", "merge_interval": M, **options}
    if tier == "native":
        return Bench(name, **{"slots": 40, **options})
    packing = {"element": "int8"} if tier == "int8" else {"plan": plan_for(name, share=1.0)}
    sizes = {"state_budget": 1 << 25, "native_slots": 8, "packed_slots": 40, "packed_above": 0}
    return Bench(name, **packing, **{**sizes, **options})


def pending(bench: Bench) -> list[int]:
    """Log lengths of the running sequences."""
    pool = bench.cache.tiers.native.pool
    return [pool.pending(s.place.lease.slot) for s in bench.running()]


def assert_empty(bench: Bench) -> None:
    """Fail unless everything was given back, and whatever was is NaN: base, conv and log."""
    bench.core.settle()
    bench.assert_empty()
    pool = bench.cache.tiers.native.pool
    assert pool.deferred is not None
    assert all(x[:, 1:].isnan().all() for x in pool._tensors)
    assert all(x[1:].isnan().all() for x in pool.deferred.tensors)


# unequal batches


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture(name: str) -> None:
    bench = Bench(name, slots=8, chunk=8, decode="deferred", merge_interval=3)
    ids = [bench.add(prompt_of(length, seed=length), tokens=7) for length in (1, 11, 4, 8)]
    bench.run()
    bench.assert_all_greedy()
    stats = bench.core.runner.decoder.stats
    assert stats.forwards["defer"] == bench.core.stats.decode_forwards > 0
    assert (stats.folds > 0, stats.phases_max >= 2) == (True, True)
    whole = bench.outputs[ids[1]].prompt_token_ids + bench.outputs[ids[1]].token_ids
    again = bench.serve((*whole, 3), tokens=3)
    assert again.cache.state_depth == len(whole) - 1
    assert_greedy(name, again)
    assert_empty(bench)


def assert_batch(name: str, merge_interval: int, chunk: int, lengths: tuple[int, ...] = (1, 9, 20, 4)) -> None:
    bench = bench_of(name, merge_interval=merge_interval, chunk=chunk)
    for length in lengths:
        bench.add(prompt_of(length, seed=length), tokens=merge_interval + 4, prompt_logprobs=VOCAB)
    bench.run()
    bench.assert_all_greedy()
    for output in bench.outputs.values():
        wanted = reference(name, output.prompt_token_ids)[:-1]
        if len(wanted):
            assert_close("prompt", distributions(output.prompt_logprobs[1:]), wanted, RTOL)
    stats = bench.core.runner.decoder.stats
    assert stats.folds > 0
    # with one entry at most there are two lengths to meet, and in short chunks nobody meets anybody
    assert (stats.mixed > 0) == (merge_interval > 2 and chunk > 2)
    output = bench.outputs[min(bench.outputs)]
    whole = output.prompt_token_ids + output.token_ids
    again = bench.serve((*whole, 7), tokens=3)
    assert again.cache.state_depth == len(whole) - 1
    assert_greedy(name, again)
    assert_empty(bench)


@every_family
@pytest.mark.parametrize("merge_interval", [1, 2, 3, 8])
def test_unequal_batches(name: str, merge_interval: int) -> None:
    assert_batch(name, merge_interval, chunk=16)


@pytest.mark.parametrize("merge_interval", [5, 33])
def test_more_merge_intervals(merge_interval: int) -> None:
    assert_batch("small-kimi_linear", merge_interval, chunk=16)


@every_family
@pytest.mark.parametrize("chunk", [1, 2])
def test_chunks_as_short_as_a_decode_step(name: str, chunk: int) -> None:
    """A chunk of one token goes into the log, which the next longer one folds."""
    assert_batch(name, 3, chunk, (1, 5, 4))


@every_family
def test_a_prefill_goes_on_from_a_log(name: str) -> None:
    """Stops for checkpoints leave chunks of one token, which are run as decode steps are."""
    bench = bench_of(name)
    bench.add(prompt_of(14), tokens=3, request={"checkpoint_at": (1, 2, 3, 8)})
    for _ in range(3):
        bench.step()
    assert pending(bench) == [2], "the next chunk has five tokens"
    bench.run()
    bench.assert_all_greedy()
    for depth in (2, 3, 8):
        again = bench.serve((*prompt_of(14)[:depth], 5, 6), tokens=1)
        assert again.cache.state_depth == depth
        assert_greedy(name, again)
    assert_empty(bench)


# every fill (class 16)


@every_family
@pytest.mark.parametrize("tier", ["native", "packed"])
def test_every_decoded_depth_can_be_resumed_and_nobody_is_disturbed(name: str, tier: str) -> None:
    bench = bench_of(name, tier, policy=EveryDecoded())
    prompt, seen = prompt_of(9), set()
    first = bench.add(prompt, tokens=2 * M + 3)
    bench.add(prompt_of(5, seed=3), tokens=2 * M + 3)
    while bench.core.has_work:
        bench.step()
        seen.update(pending(bench))
    assert seen == set(range(M))
    bench.assert_all_greedy()
    bench.core.settle()
    whole = prompt + bench.outputs[first].token_ids
    for depth in range(len(prompt) + 1, len(whole)):
        again = bench.serve((*whole[:depth], 5), tokens=2)
        wanted = "native" if tier == "native" else "compressed"
        assert (again.cache.state_depth, again.cache.tier, again.cache.lineage) == (depth, wanted, "exact")
        assert_greedy(name, again)
    assert_empty(bench)


@every_family
def test_int8_at_every_decoded_depth_is_what_it_is_without_a_log(name: str) -> None:
    found = []
    for options in ({}, {"decode": "dense", "merge_interval": None}):
        bench = bench_of(name, "int8", policy=EveryDecoded(), **options)
        output = bench.serve(prompt_of(9), tokens=2 * M + 2)
        assert_greedy(name, output)
        bench.core.settle()
        whole, rows = output.prompt_token_ids + output.token_ids, []
        for depth in range(10, len(whole)):
            again = bench.serve((*whole[:depth], 5), tokens=1)
            assert (again.cache.state_depth, again.cache.lineage) == (depth, "nr(1)")
            rows.append(distributions(again.logprobs)[0])
        found.append(torch.stack(rows))
    # the states are equal to rounding, which may move a number to the neighbouring step of its scale
    assert_close("logprobs", *found, 1e-3)


@pytest.fixture
def donated(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Log lengths of the slots that were given to the cache."""
    fills: set[int] = set()
    donate = StateTiers.donate

    def spying(self, lease):
        fills.add(self.native.pool.pending(lease.slot))
        return donate(self, lease)

    monkeypatch.setattr(StateTiers, "donate", spying)
    return fills


@pytest.mark.parametrize(("name", "tier"), [*((name, "packed") for name in SMALL), ("small-kimi_linear", "native")])
def test_a_request_ends_at_every_fill(name: str, tier: str, donated: set[int]) -> None:
    """Its slot is moved into the cache, and with packed slots demoted from there."""
    bench = bench_of(name, tier)
    for tokens in range(1, 2 * M + 2):
        first = bench.serve(prompt_of(6, seed=tokens), tokens=tokens)
        bench.core.settle()
        whole = first.prompt_token_ids + first.token_ids
        again = bench.serve((*whole, 9), tokens=1)
        wanted = "native" if tier == "native" else "compressed"
        assert (again.cache.state_depth, again.cache.tier) == (len(whole) - 1, wanted)
        bench.core.settle()
    assert donated == set(range(M))
    bench.assert_all_greedy()
    assert (bench.cache.counters["demotions"] > 0) == (tier == "packed")
    assert_empty(bench)


@every_family
def test_forks_of_a_running_request(name: str) -> None:
    """At every depth two others resume from one state, and all three go on together."""
    bench = bench_of(name, policy=EveryDecoded())
    first = bench.add(prompt_of(7), tokens=2 * M + 2)
    bench.step()
    forks, fills = {}, set()
    while first not in bench.outputs:
        bench.step()
        (source, *_) = bench.running() or [None]
        if source is None or source.request.id != first or source.computed <= 7:
            continue
        fills.update(pending(bench)[:1])
        for token in (3, 4):
            forks[bench.add((*source.tokens[: source.computed], token), tokens=3)] = source.computed
    bench.run()
    assert fills == set(range(M))
    for request_id, depth in forks.items():
        assert bench.outputs[request_id].cache.state_depth == depth
    bench.assert_all_greedy()
    assert_empty(bench)


@pytest.mark.parametrize(("name", "slots", "rows"), [*((name, 8, 45) for name in SMALL), ("small-kimi_linear", 1, 40)])
def test_too_little_memory(name: str, slots: int, rows: int) -> None:
    bench = bench_of(name, slots=slots, rows=rows, max_running=4, policy=BUSY, merge_interval=3)
    for i in range(6):
        bench.add(prompt_of(3 + 5 * (i % 4), seed=i % 3), tokens=8)
    bench.run(limit=200)
    bench.assert_all_greedy()
    assert (bench.core.stats.preemptions > 0) == (slots > 1)
    assert_empty(bench)


@every_family
def test_an_abort_at_every_fill(name: str) -> None:
    bench = bench_of(name)
    other = bench.add(prompt_of(4, seed=50), tokens=30)
    for steps in range(1, M + 3):
        gone = bench.add(prompt_of(6, seed=steps), tokens=20)
        for _ in range(2 + steps):
            bench.step()
        (sequence,) = (s for s in bench.running() if s.request.id == gone)
        depth, tokens = sequence.computed, tuple(sequence.tokens)
        bench.abort(gone)
        assert bench.outputs[gone].finish_reason == "abort"
        again = bench.add((*tokens[:depth], 9), tokens=1)
        while again not in bench.outputs:
            bench.step()
        assert bench.outputs[again].cache.state_depth == depth > 6
    bench.run()
    assert len(bench.outputs[other].token_ids) == 30
    bench.assert_all_greedy()
    assert_empty(bench)


@every_family
def test_a_refresh_of_a_slot_that_decoded_into_a_log(name: str) -> None:
    plan = plan_for(name)
    sizes = {"state_budget": 1 << 25, "native_slots": 12, "packed_slots": 8, "packed_above": 0}
    bench = Bench(name, plan=plan, refresh="suffix", decode="deferred", merge_interval=M, **sizes)
    first = bench.serve(prompt_of(20), tokens=M + 2)
    bench.core.settle()
    whole = first.prompt_token_ids + first.token_ids
    output = bench.serve((*whole, 1, 2), tokens=M + 2)
    assert (output.cache.state_depth, output.cache.lineage) == (len(whole) - 1, "wr(1)")
    wanted = by_hand(name, len(whole) - 1, output, plan, WINDOW)
    assert_close("logprobs", distributions(output.logprobs), wanted, RTOL)
    bench.core.settle()
    bench.assert_empty()


# failures

POINTS: list[tuple[type | ModuleType, str]] = [
    (DeferredLog, "advanced"),
    (ops, "advance"),
    (ops, "step"),
    (ops, "fold"),
    (ops, "materialise"),
    (conv_ops, "step"),
    (conv_ops, "materialise"),
    (SlotPool, "settle"),
    (Step, "recur"),
]


@pytest.mark.parametrize(("owner", "method"), POINTS, ids=lambda x: getattr(x, "__name__", x))
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_one_call_fails(owner: type, method: str, error: type[BaseException]) -> None:
    """Those that it hits end with an error; the others, and who gets their slots, are right."""
    bench = bench_of("small-kimi_linear", slots=6, rows=40, policy=BUSY, chunk=8, max_running=3)
    for i in range(3):
        bench.add(prompt_of(4, seed=1) + prompt_of(1 + i, seed=i), tokens=6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, method, failing(getattr(owner, method), 1, error("injected")))
        while bench.core.has_work:
            try:
                bench.step()
            except KeyboardInterrupt:
                bench.check()
    for output in bench.outputs.values():
        if output.error is None:
            assert_greedy(bench.name, output)
        else:
            assert str(output.error) == "injected"
    # in the slots that those have left
    assert_greedy(bench.name, bench.serve(prompt_of(5, seed=8), tokens=M + 2))
    assert_empty(bench)
