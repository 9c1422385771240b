"""Packed checkpoints in the engine: what a request resumes from is what its lineage says, computed by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from holdover.engine.runner import Runner
from holdover.engine.step import KVMode, Span, StateMode
from holdover.prefix.policies import AnyOf, EndOfRequest, EveryN, Wanted
from holdover.retention import RetentionPlan
from holdover.state import SlotPool
from holdover.store import KVPool
from tests.arch.table import ARCHITECTURES
from tests.codec.build import SHORT, plan_of, random_plan
from tests.engine.harness import RTOL, Bench, assert_greedy, distributions, host_of, prompt_of, reference
from tests.engine.small import SMALL
from tests.helpers import assert_close

# one for each family of recurrence
NAMES = list(SMALL)
every_model = pytest.mark.parametrize("name", NAMES)
LIVE, SCRATCH = 1, 2
# Eq. 7: omitted units have a horizon of SHORT tokens, and the window is the power of two above it
WINDOW = 8
assert WINDOW / 2 < SHORT <= WINDOW


def plan_for(name: str, share: float = 0.5) -> RetentionPlan:
    layout = host_of(name).layout.state
    plan = random_plan(layout, 3, share)
    assert share == 1 or 0 < plan.offsets[-1] < plan.units
    return plan


def bench_of(name: str, share: float = 0.5, **options) -> Bench:
    # prompts of these tests are shorter than the plans' horizons
    sizes = {"state_budget": 1 << 24, "native_slots": 12, "packed_slots": 8, "packed_above": 0}
    return Bench(name, plan=plan_for(name, share), **{**sizes, **options})


def settled(bench: Bench, output):
    """The output, once what its end has given to the cache lies where it should."""
    bench.core.settle()
    bench.check()
    return output


class Hand:
    """A sequence that is run, zeroed and refreshed by hand, on pools of its own."""

    def __init__(self, name: str) -> None:
        layout = host_of(name).layout
        self.slots = SlotPool(layout.state, 2)
        self.kv = KVPool(layout.kv, 200, poison=True)
        self.runner = Runner(host_of(name), self.slots, self.kv)
        self.slots.reset(LIVE, b"")
        self.slots.poison(SCRATCH)
        self.tokens: list[int] = []
        self.rows = self.kv.allocate(0)

    def run(self, tokens: Sequence[int]) -> torch.Tensor:
        """Log probabilities after each token, ``[len(tokens), vocabulary]``."""
        start = len(self.tokens)
        self.tokens += tokens
        self.rows = torch.cat([self.rows, self.kv.allocate(len(tokens))])
        span = Span(LIVE, list(tokens), start, self.rows)
        logits = self.runner.run([span], logits=None).logits
        assert logits is not None
        return logits[0].log_softmax(-1)

    def omit(self, plan: RetentionPlan, refreshed: int = 0) -> None:
        """Zero the omitted units, or set them to what the last tokens give from an empty state."""
        if refreshed:
            depth = len(self.tokens)
            span = Span(SCRATCH, self.tokens[depth - refreshed :], depth - refreshed, self.rows)
            self.runner.run([span], kv=KVMode.DISCARD, state=StateMode.SCRATCH)
        for spec, mask in zip(self.slots.layout.layers, plan.retained, strict=True):
            live, scratch = (self.slots.temporal(spec.index)[slot].view(spec.units, -1) for slot in (LIVE, SCRATCH))
            for unit in range(spec.units):
                if not mask[unit]:
                    live[unit] = scratch[unit] if refreshed else 0


def by_hand(name: str, depth: int, output, plan: RetentionPlan, refreshed: int = 0) -> torch.Tensor:
    """Log probabilities of an output's tokens, resumed lossily at ``depth``, from the definition."""
    whole = (*output.prompt_token_ids, *output.token_ids)
    hand = Hand(name)
    hand.run(whole[:depth])
    hand.omit(plan, refreshed)
    after = hand.run(whole[depth:-1])
    return after[len(output.prompt_token_ids) - 1 - depth :]


def second_turn(bench: Bench, length: int = 20, tokens: int = 5, **request):
    """A request, and one that goes on where it ended; the depth at which that should resume."""
    first = settled(bench, bench.serve(prompt_of(length), tokens=4))
    whole = first.prompt_token_ids + first.token_ids
    return bench.serve((*whole, *prompt_of(3, seed=9)), tokens=tokens, **request), len(whole) - 1


def assert_lossy_hit(bench: Bench, output, depth: int, kind: str = "nr(1)") -> None:
    report, codec = output.cache, bench.cache.tiers.codec
    assert output.error is None
    assert (report.state_depth, report.kv_depth, report.tier, report.lineage) == (depth, depth, "compressed", kind)
    assert report.checkpoint_bytes == codec.nbytes < bench.host.layout.state.checkpoint_bytes
    assert report.omitted == pytest.approx(1 - codec.plan.offsets[-1] / codec.plan.units)
    assert report.source is None


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("refresh", ["none", "suffix"])
def test_every_architecture(name, refresh, tmp_path):
    """Packed, written, dropped from memory and brought up again: a hit is its definition each time."""
    bench, plan = bench_of(name, refresh=refresh, chunk=5, spill_dir=tmp_path), plan_for(name)
    refreshed, kind = (WINDOW, "wr(1)") if refresh == "suffix" else (0, "nr(1)")
    output, depth = second_turn(bench)
    assert_lossy_hit(bench, output, depth, kind)
    bench.core.settle()
    bench.cache.flush()
    again = bench.serve(output.prompt_token_ids, tokens=5)
    assert (again.cache.state_depth, again.cache.source, again.cache.lineage) == (depth, "disk", kind)
    wanted = by_hand(name, depth, output, plan, refreshed)
    exact = reference(name, (*output.prompt_token_ids, *output.token_ids))[len(output.prompt_token_ids) - 1 : -1]
    for one in (output, again):
        assert_close("logprobs", distributions(one.logprobs), wanted, RTOL)
        assert (distributions(one.logprobs) - exact).abs().max() > 10 * RTOL
    bench.core.settle()
    bench.assert_empty()
    bench.core.close()


# nothing omitted: bit for bit the dense run


@every_model
@pytest.mark.parametrize("refresh", ["none", "suffix"])
def test_a_plan_that_omits_nothing_is_the_dense_run_bit_for_bit(name, refresh):
    dense, packed = Bench(name), bench_of(name, share=1.0, refresh=refresh)
    outputs = [second_turn(bench)[0] for bench in (dense, packed)]
    assert [o.cache.tier for o in outputs] == ["native", "compressed"]
    assert outputs[0].token_ids == outputs[1].token_ids
    assert torch.equal(*(distributions(o.logprobs) for o in outputs))
    report = outputs[1].cache
    assert (report.lineage, report.omitted, report.refresh_tokens) == ("exact", 0, 0)
    assert packed.core.refresh is None, "a refresh of nothing takes no slot"
    assert_greedy(name, outputs[1])
    for one in (dense, packed):
        one.assert_empty()


# NR: omitted units are zero


@every_model
@pytest.mark.parametrize("chunk", [1, 2, 3, 16])
def test_a_hit_without_refresh_is_a_dense_restore_with_its_omitted_units_zeroed(name, chunk):
    bench = bench_of(name, chunk=chunk)
    output, depth = second_turn(bench)
    assert_lossy_hit(bench, output, depth)
    assert_close("logprobs", distributions(output.logprobs), by_hand(name, depth, output, plan_for(name)), RTOL)
    # and that is not the exact run: what the test compares can be told apart
    exact = reference(name, (*output.prompt_token_ids, *output.token_ids))[len(output.prompt_token_ids) - 1 : -1]
    assert (distributions(output.logprobs) - exact).abs().max() > 100 * RTOL
    bench.assert_empty()


@every_model
def test_a_dense_hit_bypasses_the_plan(name):
    bench = bench_of(name, native_slots=12)
    first = bench.serve(prompt_of(20), tokens=4, request={"exact": True})
    settled(bench, first)
    output = bench.serve((*first.prompt_token_ids, *first.token_ids, 1), tokens=4)
    assert (output.cache.tier, output.cache.lineage, output.cache.omitted) == ("native", "exact", 0)
    assert_greedy(name, output)


@pytest.mark.parametrize("arrangement", ["ragged", "padded"])
def test_the_arrangement_changes_no_result(arrangement):
    output, depth = second_turn(bench_of("kimi_linear", arrangement=arrangement))
    assert_close(
        "x", distributions(output.logprobs), by_hand("kimi_linear", depth, output, plan_for("kimi_linear")), RTOL
    )


@every_model
def test_int8_is_lossy_and_close(name):
    bench = Bench(name, element="int8", state_budget=1 << 24, native_slots=12, packed_slots=8)
    output, depth = second_turn(bench)
    assert (output.cache.state_depth, output.cache.lineage, output.cache.omitted) == (depth, "nr(1)", 0)
    exact = reference(name, (*output.prompt_token_ids, *output.token_ids))[len(output.prompt_token_ids) - 1 : -1]
    error = (distributions(output.logprobs) - exact).abs().max()
    assert RTOL < error < 1


# WR: omitted units from a replay of the last tokens


@every_model
@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_a_refreshed_hit_is_its_definition(name, chunk):
    bench = bench_of(name, refresh="suffix", chunk=chunk)
    output, depth = second_turn(bench)
    assert_lossy_hit(bench, output, depth, "wr(1)")
    assert output.cache.refresh_tokens == WINDOW
    assert output.cache.refresh_seconds > 0
    wanted = by_hand(name, depth, output, plan_for(name), WINDOW)
    assert_close("logprobs", distributions(output.logprobs), wanted, RTOL)
    bench.assert_empty()


@every_model
def test_a_refresh_changes_the_omitted_units_and_nothing_else(name):
    bench, plan = bench_of(name, refresh="suffix"), plan_for(name)
    first = settled(bench, bench.serve(prompt_of(20), tokens=4))
    tokens = list(first.prompt_token_ids + first.token_ids)
    opened = bench.cache.open(bench.prepare.namespace(""), tokens)
    pool, kv, slot, depth = bench.cache.tiers.native.pool, bench.cache.kv, opened.lease.slot, opened.hold.depth
    before = [t.clone() for t in pool.tensors_of(slot)]
    planes = [plane.clone().view(torch.int32) for layer in kv.layout.layers for plane in kv.planes(layer.index)]
    header = pool.header(slot)
    assert bench.core.refresh.run(slot, tokens[:depth], opened.hold.rows()) == WINDOW
    after = [plane.view(torch.int32) for layer in kv.layout.layers for plane in kv.planes(layer.index)]
    assert all(torch.equal(x, y) for x, y in zip(planes, after, strict=True)), "cached KV stays, in the window too"
    assert (pool.header(slot).key, str(pool.header(slot).lineage)) == (header.key, "wr(1)")
    now = [t.clone() for t in pool.tensors_of(slot)]
    hand = Hand(name)
    hand.run(tokens[:depth])
    hand.omit(plan, WINDOW)
    for spec, mask in zip(pool.layout.layers, plan.retained, strict=True):
        got = pool.temporal(spec.index)[slot].view(spec.units, -1)
        wanted = hand.slots.temporal(spec.index)[LIVE].view(spec.units, -1)
        assert_close("retained", got[mask], wanted[mask], RTOL)
        assert_close("omitted", got[~mask], wanted[~mask], RTOL)
        # the retained units and the conv state were not touched: put the omitted ones back to zero
        pool.temporal(spec.index)[slot].view(spec.units, -1)[~mask] = 0
    assert not all(torch.equal(x, y) for x, y in zip(before, now, strict=True))
    assert all(torch.equal(x, y) for x, y in zip(before, pool.tensors_of(slot), strict=True))
    opened.lease.release()
    bench.cache.release(opened.hold)
    bench.assert_empty()


@every_model
@pytest.mark.parametrize("depth", [1, 3, 7, 8])
def test_a_prefix_within_the_window_is_recovered_whole(name, depth):
    """The replay starts from the true beginning: nothing is lost."""
    bench = bench_of(name, refresh="suffix", policy=Wanted())
    prompt = prompt_of(20)
    settled(bench, bench.serve(prompt, request={"checkpoint_at": (depth,)}))
    output = bench.serve(prompt)
    assert (output.cache.state_depth, output.cache.refresh_tokens, output.cache.lineage) == (depth, depth, "exact")
    assert_greedy(name, output)


def test_a_refresh_that_fails_leaves_the_hit_unrefreshed(monkeypatch):
    bench = bench_of("kimi_linear", refresh="suffix")
    first = settled(bench, bench.serve(prompt_of(20), tokens=4))
    whole = first.prompt_token_ids + first.token_ids
    with monkeypatch.context() as patch:
        patch.setattr(type(bench.core.refresh), "run", lambda *_: 1 / 0)
        output = bench.serve((*whole, 1), tokens=4)
    assert_lossy_hit(bench, output, len(whole) - 1)
    assert bench.core.stats.refreshes_failed == 1
    wanted = by_hand("kimi_linear", len(whole) - 1, output, plan_for("kimi_linear"))
    assert_close("logprobs", distributions(output.logprobs), wanted, RTOL)
    bench.assert_empty()


# who may resume from what


@every_model
def test_a_request_that_demands_exact_never_sees_a_lossy_state(name):
    bench = bench_of(name)
    output, _ = second_turn(bench, request={"exact": True})
    assert (output.cache.state_depth, output.cache.tier) == (0, None)
    assert "no exact checkpoint" in output.cache.reason
    assert_greedy(name, output)
    settled(bench, output)
    # what it leaves is exact, and stands for whoever asks
    for exact in (True, False):
        whole = output.prompt_token_ids + output.token_ids
        again = bench.serve((*whole, 5), tokens=3, request={"exact": exact})
        assert (again.cache.state_depth, again.cache.tier, again.cache.lineage) == (len(whole) - 1, "native", "exact")
        assert_greedy(name, again)
    bench.assert_empty()


@pytest.mark.parametrize("most", [None, 0, 1, 2])
def test_a_cap_on_losses_resumes_shallower(most):
    bench = bench_of("kimi_linear", max_losses=most)
    prompt, known = prompt_of(9), [0]
    for turn in range(4):
        output = settled(bench, bench.serve(prompt, tokens=3))
        depth = known[-1] if most is None else known[min(turn, most)]
        assert output.cache.state_depth == depth
        losses = turn if most is None else min(turn, most)
        assert output.cache.lineage == (f"nr({losses})" if losses else None)
        assert bench.core.stats.losses_max <= (3 if most is None else most)
        prompt = output.prompt_token_ids + output.token_ids
        known.append(len(prompt) - 1)
        prompt += (turn,)
    bench.assert_empty()


BUSY = AnyOf((EndOfRequest(), EveryN(4), Wanted()))


@every_model
@pytest.mark.parametrize("refresh", ["none", "suffix"])
@pytest.mark.parametrize(("slots", "packed"), [(6, 3), (2, 1)])
def test_too_little_memory_changes_no_exact_answer_and_leaks_nothing(name, refresh, slots, packed):
    """Preemption, demotion and eviction at once; those that demand exact are the reference's."""
    sizes = {"native_slots": slots, "packed_slots": packed, "rows": 45, "max_running": 4}
    bench = bench_of(name, refresh=refresh, policy=BUSY, **sizes)
    exact = [
        bench.add(prompt_of(3 + 5 * (i % 4), seed=i % 3), tokens=8, request={"exact": i % 2 == 0}) for i in range(6)
    ]
    gone = bench.add(prompt_of(18, seed=1), tokens=8)
    for _ in range(3):
        bench.step()
    bench.abort(gone)
    bench.run(limit=300)
    assert all(output.error is None for output in bench.outputs.values())
    for request_id in exact[::2]:
        assert_greedy(name, bench.outputs[request_id])
    bench.core.settle()
    bench.assert_empty()


def test_one_native_slot_serves_a_conversation():
    """The slot that a request has just left is on its way down when the next one needs it."""
    bench = bench_of("qwen3_5", native_slots=1, packed_slots=2)
    prompt = prompt_of(9)
    for turn in range(4):
        output = bench.serve(prompt, tokens=3)
        assert output.error is None
        assert (output.cache.state_depth > 0) == (turn > 0)
        prompt = (*output.prompt_token_ids, *output.token_ids, turn)
    bench.core.settle()
    bench.assert_empty()


# shadow check


@pytest.mark.parametrize(
    ("gate", "least", "trips"), [(None, 1, False), (1e9, 1, False), (1e-9, 1, True), (1e-9, 20, False)]
)
def test_a_shadow_measures_what_an_approximate_hit_cost(gate, least, trips):
    name = "kimi_linear"
    bench = bench_of(name, shadow_share=1.0, shadow_gate=gate)
    bench.core.shadow.least = least
    output, _ = second_turn(bench)
    stats = bench.core.shadow.stats
    assert all("shadow" not in request_id for request_id in bench.outputs)
    exact = reference(name, output.prompt_token_ids)[-1]
    kl = float((exact.exp() * (exact - distributions(output.logprobs)[0])).sum())
    assert kl > 1e-6
    assert (stats.checked, stats.over_gate, stats.tripped) == (1, int(gate == 1e-9), trips)
    assert stats.kl_sum == stats.kl_max == pytest.approx(kl, rel=1e-2)
    settled(bench, output)
    # a prompt that leaves only lossy states to resume from: after the gate was found not to hold they are not
    other = settled(bench, bench.serve(prompt_of(12, seed=5), tokens=3))
    again = bench.serve((*other.prompt_token_ids, *other.token_ids, 1), tokens=3)
    if trips:
        assert again.cache.state_depth == 0
        assert_greedy(name, again)
    else:
        assert again.cache.lineage == "nr(1)"
    bench.core.settle()
    bench.assert_empty()


# below the resident tiers, over a restart


@every_model
@pytest.mark.parametrize("plan", [None, 0.5, 1.0])
def test_a_restarted_engine_resumes_from_the_spill_directory(name, plan, tmp_path):
    def start() -> Bench:
        if plan is None:
            return Bench(name, state_budget=1 << 24, spill_dir=tmp_path)
        return bench_of(name, plan, spill_dir=tmp_path)

    bench = start()
    prompt = prompt_of(20)
    first = bench.serve(prompt, tokens=4, request={"checkpoint_at": (8, 13)})
    whole = first.prompt_token_ids + first.token_ids
    bench.core.settle()
    bench.core.close()
    again = start()
    for wanted, depth in (((*whole, 1), 23), (prompt, 13), (prompt[:10], 8)):
        output = again.serve(wanted, tokens=3)
        assert (output.cache.state_depth, output.cache.source) == (depth, "disk")
        assert output.cache.lineage == ("nr(1)" if plan == 0.5 else "exact")
        if plan != 0.5:
            assert_greedy(name, output)
        else:
            assert_close("x", distributions(output.logprobs), by_hand(name, depth, output, plan_for(name)), RTOL)
        again.core.settle()
        again.cache.flush()
    # another tenant's, and another plan's, are never found
    assert again.serve((*whole, 1), tokens=2, request={"salt": "other"}).cache.state_depth == 0
    again.core.settle()
    again.assert_empty()
    again.core.close()


# memory (class 18)


@every_model
@pytest.mark.parametrize("element", ["full", "int8"])
@pytest.mark.parametrize("refresh", ["none", "suffix"])
def test_all_state_is_within_its_budget(name, element, refresh):
    budget = 60 * host_of(name).layout.state.checkpoint_bytes
    bench = Bench(name, plan=plan_for(name), element=element, refresh=refresh, state_budget=budget)
    tiers = bench.cache.tiers
    assert tiers.native.pool.num_slots > 1
    assert tiers.packed.pool.num_slots > 1
    allocated = sum(t.untyped_storage().nbytes() for t in tiers.native.pool._tensors)
    allocated += tiers.packed.pool.records.untyped_storage().nbytes()
    assert tiers.native.pool.nbytes + tiers.packed.pool.nbytes == allocated
    # beside what packing takes, one more record would not fit
    assert allocated + tiers.codec.staging_bytes <= budget
    assert allocated + tiers.codec.staging_bytes + tiers.codec.nbytes > budget


@every_model
def test_room_for_one_record_less_a_byte_packs_nothing_and_serves(name):
    plan = plan_for(name)
    slots = SlotPool.bytes_for(host_of(name).layout.state, 2)
    record = bench_of(name).cache.tiers.codec.nbytes
    bench = Bench(name, plan=plan, state_budget=slots + 2 * record - 1, native_slots=2)
    assert bench.cache.tiers.packed.pool.num_slots == 0
    output, depth = second_turn(bench)
    assert (output.cache.state_depth, output.cache.tier) == (depth, "native")
    assert_greedy(name, output)


def test_plans_of_all_or_nothing():
    """No unit retained: the conv state alone is kept; KV and conv carry the rest."""
    name = "granite_hybrid"
    layout = host_of(name).layout.state
    plan = plan_of(layout, [torch.zeros(n, dtype=torch.bool) for n in layout.units_per_layer])
    bench = Bench(name, plan=plan, state_budget=1 << 24, native_slots=12, packed_slots=8)
    output, depth = second_turn(bench)
    assert output.cache.omitted == 1
    assert_close("logprobs", distributions(output.logprobs), by_hand(name, depth, output, plan), RTOL)
