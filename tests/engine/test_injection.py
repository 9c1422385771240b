"""Every allocation, copy, publication and forward may fail: whoever it hits ends with an error or goes without a
checkpoint, everybody else ends right, and every pool balances."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdover.engine.runner import Runner
from holdover.engine.step import Step
from holdover.errors import CapacityError, CheckpointMismatchError
from holdover.prefix import PrefixCache
from holdover.prefix.policies import AnyOf, EndOfRequest, EveryN
from holdover.state import SlotPool
from holdover.store import KVPool, SlotAllocator
from tests.arch.table import ARCHITECTURES
from tests.engine.harness import TOY, Bench, assert_greedy, failing, prompt_of
from tests.engine.toy import VOCAB, ToyHost

POINTS = [
    (PrefixCache, "open"),
    (PrefixCache, "acquire_slot"),
    (PrefixCache, "allocate_rows"),
    (PrefixCache, "publish"),
    (SlotAllocator, "acquire"),
    (SlotPool, "reset"),
    (SlotPool, "copy"),
    (SlotPool, "begin"),
    (SlotPool, "commit"),
    (KVPool, "allocate"),
    (KVPool, "write"),
    (Runner, "run"),
    (ToyHost, "forward"),
    (Step, "convolve"),
    (Step, "recur"),
]
CALLS = 24


def bench_with_requests() -> Bench:
    """Five requests that meet in a prefix, with preemption and checkpoints."""
    bench = Bench(TOY, slots=4, rows=36, chunk=4, policy=AnyOf((EndOfRequest(), EveryN(4))))
    for i in range(5):
        prompt = prompt_of(6, vocab=VOCAB) + prompt_of(1 + 2 * i, seed=i, vocab=VOCAB)
        bench.add(prompt, tokens=6)
    return bench



@pytest.mark.parametrize(("owner", "method"), POINTS, ids=lambda x: x if isinstance(x, str) else x.__name__)
@pytest.mark.parametrize("kind", [RuntimeError, CapacityError, KeyboardInterrupt])
def test_one_call_fails(owner: type, method: str, kind: type[BaseException]) -> None:
    reached = 0
    for at in range(CALLS):
        bench = bench_with_requests()
        error = kind("injected")
        interrupted = False
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, method, failing(getattr(owner, method), at, error))
            while bench.core.has_work:
                assert bench.steps < 300
                try:
                    bench.step()
                except KeyboardInterrupt:
                    interrupted = True
                    bench.check()
        failed = [output for output in bench.outputs.values() if output.error is not None]
        assert all(output.finish_reason == "error" for output in failed)
        for output in bench.outputs.values():
            if output.error is None:
                assert_greedy(TOY, output)
        # an interrupt ends those whose forward it hit, and the interrupted call's updates are lost with it
        assert interrupted or len(bench.outputs) == 5
        assert len(failed) <= 4, "one fault ended everybody"
        reached += bool(failed or interrupted or bench.core.stats.checkpoints_skipped)
        bench.assert_empty()
    assert reached or kind is CapacityError


@pytest.mark.parametrize("method", ["copy", "begin", "commit", "reset"])
def test_what_is_left_after_a_fault_can_be_resumed(method: str) -> None:
    """A torn slot is never donated: the same prompts again equal the reference."""
    for at in range(12):
        bench = bench_with_requests()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SlotPool, method, failing(getattr(SlotPool, method), at, RuntimeError("injected")))
            bench.run(limit=300)
        for output in list(bench.outputs.values()):
            assert_greedy(TOY, bench.serve((*output.prompt_token_ids, *output.token_ids, 1)))


@pytest.mark.parametrize("skipped", ["recur", "convolve", "update"])
@pytest.mark.parametrize("name", [TOY, *ARCHITECTURES])
@pytest.mark.parametrize("prompt", [1, 5])
def test_a_layer_that_does_not_write_fails_loudly(
    name: str, skipped: str, prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One layer of one forward; nothing of that request is kept."""
    bench = Bench(name)
    layers = bench.host.layout.kv.layers if skipped == "update" else bench.host.layout.state.layers
    victim, original = layers[-1].index, getattr(Step, skipped)

    def skipping(self: Step, *args, **kwargs):
        layer = args[2] if skipped == "update" else args[0]
        pools = self.convolved, self.advanced, self.appended
        before = [set(pool) for pool in pools]
        out = original(self, *args, **kwargs)
        if layer == victim:
            for pool, old in zip(pools, before, strict=True):
                pool.intersection_update(old)
        return out

    with monkeypatch.context() as patch:
        patch.setattr(Step, skipped, skipping)
        output = bench.serve(prompt_of(prompt, vocab=VOCAB))
    assert output.finish_reason == "error"
    assert isinstance(output.error, CheckpointMismatchError)
    assert str(victim) in str(output.error)
    assert not bench.cache.state_order
    assert_greedy(name, bench.serve(prompt_of(prompt, vocab=VOCAB), tokens=2))
    bench.assert_empty()


def test_logits_that_are_not_numbers_end_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that gave them is kept for nobody; sampled requests and greedy ones alike."""
    for temperature in (0.0, 1.0):
        bench = Bench(TOY)
        forward = ToyHost.forward

        def broken(self, tokens, positions, step, logits, forward=forward):
            out = forward(self, tokens, positions, step, logits)
            # the sequence of token 1 only
            out[tokens[:, 0] == 1] = float("nan")
            return out

        with monkeypatch.context() as patch:
            patch.setattr(ToyHost, "forward", broken)
            bad = bench.add([1], temperature=temperature, seed=0)
            good = bench.add([2], tokens=1)
            bench.step()
        bench.run()
        assert "not finite" in str(bench.outputs[bad].error)
        assert bench.outputs[bad].token_ids == ()
        assert_greedy(TOY, bench.outputs[good])
        assert not bench.cache.has_state(bench.prepare.namespace(""), [1])


def test_a_decoder_that_raises_ends_its_request_only() -> None:
    bench = Bench(TOY)

    class Broken:
        def decode(self, ids):
            raise ValueError("no such token")

    bad, good = bench.add([1, 2]), bench.add([2, 3])
    bench.core._waiting[0].text._decoder = Broken()
    bench.core._waiting[0].text.finish = lambda: ""
    bench.run()
    assert str(bench.outputs[bad].error) == "no such token"
    assert_greedy(TOY, bench.outputs[good])
    bench.assert_empty()
