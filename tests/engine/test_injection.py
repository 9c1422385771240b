"""Every allocation, copy, publication and forward may fail: whoever it hits ends with an error or goes without a
checkpoint, everybody else ends right, and every pool balances."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from holdover.engine.runner import Runner
from holdover.engine.step import Step
from holdover.errors import CapacityError, CheckpointMismatchError
from holdover.ops.native.mixing import Mixing
from holdover.prefix import PrefixCache
from holdover.prefix.policies import AnyOf, EndOfRequest, EveryN
from holdover.prefix.rows import TreeRows
from holdover.state import Lineage, SlotPool
from holdover.store import KVPool, SlotAllocator, StateTiers
from tests.arch.table import ARCHITECTURES
from tests.engine.harness import TOY, Bench, assert_greedy, failing, prompt_of
from tests.engine.small import SMALL
from tests.engine.toy import VOCAB, ToyHost

POINTS = [
    (PrefixCache, "open"),
    (StateTiers, "acquire"),
    (StateTiers, "snapshot"),
    (StateTiers, "donate"),
    (TreeRows, "allocate"),
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
ALLOCATIONS = ("open", "acquire", "allocate")


def bench_with_requests() -> Bench:
    """Five requests that meet in a prefix, with preemption, checkpoints and resumption."""
    bench = Bench(TOY, slots=10, rows=24, max_running=3, chunk=4, policy=AnyOf((EndOfRequest(), EveryN(4))))
    for i in range(5):
        prompt = prompt_of(6, vocab=VOCAB) + prompt_of(1 + i, seed=i, vocab=VOCAB)
        bench.add(prompt, tokens=6)
    return bench


def test_the_requests_come_through_everything() -> None:
    bench = bench_with_requests()
    bench.run()
    assert bench.core.stats.preemptions
    assert bench.core.stats.hit_tokens
    assert bench.cache.counters["checkpoints_published"] > 5


def run_with_a_fault(owner: type, method: str, at: int, error: BaseException) -> tuple[Bench, bool]:
    """Whether the fault came through to the caller of `step`."""
    bench, came_through = bench_with_requests(), False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, method, failing(getattr(owner, method), at, error))
        while bench.core.has_work:
            assert bench.steps < 300
            try:
                bench.step()
            except KeyboardInterrupt:
                came_through = True
                bench.check()
    return bench, came_through


def assert_sound(bench: Bench) -> list[BaseException]:
    """Fail unless all that ended without an error are right and nothing leaked; returns the errors."""
    errors = [output.error for output in bench.outputs.values() if output.error is not None]
    for output in bench.outputs.values():
        assert (output.finish_reason == "error") == (output.error is not None)
        if output.error is None:
            assert_greedy(TOY, output)
    bench.assert_empty()
    return errors


def ids(value: object) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


# rows that a whole batch could not have are asked for once more by each; a state that cannot be kept is not kept
SURVIVED = [
    (PrefixCache, "publish"),
    (TreeRows, "allocate"),
    (StateTiers, "donate"),
    (KVPool, "allocate"),
]


@pytest.mark.parametrize(("owner", "method"), POINTS, ids=ids)
def test_one_call_fails(owner: type, method: str) -> None:
    noticed = 0
    for at in range(16):
        bench, _ = run_with_a_fault(owner, method, at, RuntimeError("injected"))
        errors = assert_sound(bench)
        assert len(bench.outputs) == 5
        assert {str(error) for error in errors} <= {"injected"}
        # at most those that ran together
        assert len(errors) <= 3
        noticed += bool(errors or bench.core.stats.checkpoints_skipped)
    assert noticed or (owner, method) in SURVIVED


@pytest.mark.parametrize(("owner", "method"), [p for p in POINTS if p[1] in ALLOCATIONS], ids=ids)
def test_one_allocation_finds_no_room(owner: type, method: str) -> None:
    """Room may come: nobody ends for want of it."""
    for at in range(0, 20, 2):
        bench, _ = run_with_a_fault(owner, method, at, CapacityError("injected"))
        errors = assert_sound(bench)
        # with nobody else running there is nothing to wait for
        assert len(bench.outputs) == 5
        assert len(errors) <= (at == 0)


@pytest.mark.parametrize(("owner", "method"), POINTS, ids=ids)
def test_an_interrupt(owner: type, method: str) -> None:
    """It reaches the caller, and the requests that it did not hit go on after it."""
    for at in (0, 2, 5, 8, 11):
        bench, came_through = run_with_a_fault(owner, method, at, KeyboardInterrupt())
        assert_sound(bench)
        assert came_through or at > 2
        # those that it ended have no update: it went with the step
        assert len(bench.outputs) >= 2


@pytest.mark.parametrize("method", ["copy", "begin", "commit", "reset"])
def test_what_is_left_after_a_fault_can_be_resumed(method: str) -> None:
    """A torn slot is never donated: the same prompts again equal the reference."""
    for at in range(0, 12, 2):
        bench = bench_with_requests()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SlotPool, method, failing(getattr(SlotPool, method), at, RuntimeError("injected")))
            bench.run(limit=300)
        for output in list(bench.outputs.values()):
            assert_greedy(TOY, bench.serve((*output.prompt_token_ids, *output.token_ids, 1)))


def skip_recur(step: Step, layer: int, op, fixed, **timed: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(timed.get("v", timed.get("x"))).float()


def skip_convolve(step: Step, layer: int, x: torch.Tensor, *_) -> torch.Tensor:
    return x


def skip_update(
    step: Step, first: torch.Tensor, second: torch.Tensor, layer: int, *_, **__
) -> tuple[torch.Tensor, ...]:
    step.layer = layer
    return first, second


def skip_mix(step: Step, layer: int, mixing: Mixing, *, channels: torch.Tensor, **_: torch.Tensor) -> torch.Tensor:
    heads, _, _, d_v = mixing.sizes
    return torch.zeros(*channels.shape[:2], heads * d_v)


RUNS = [*((name, 5) for name in (TOY, *ARCHITECTURES)), *((name, 1) for name in (TOY, *SMALL))]


@pytest.mark.parametrize(
    ("name", "skipped", "prompt"),
    [
        *((name, skipped, prompt) for skipped in (skip_recur, skip_convolve, skip_update) for name, prompt in RUNS),
        *((name, skip_mix, 1) for name in SMALL),
    ],
)
def test_a_layer_that_does_not_write_fails_loudly(name: str, skipped: Callable, prompt: int) -> None:
    """One layer does not hand its part over; nothing of that request is kept."""
    bench = Bench(name)
    method = skipped.__name__.removeprefix("skip_")
    layout, original = bench.host.layout, getattr(Step, method)
    victim = (layout.kv if method == "update" else layout.state).layers[-1].index

    def skipping(step: Step, *args, **kwargs):
        layer = args[2] if method == "update" else args[0]
        if layer != victim:
            return original(step, *args, **kwargs)
        # poisoned rows read by attention are no concern here
        return skipped(step, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        # part by part, also where one call has all parts
        patch.setattr(Step, "mix", lambda *_, **__: None)
        patch.setattr(Step, method, skipping)
        patch.setattr(ToyHost, "check", False)
        output = bench.serve(prompt_of(prompt, vocab=VOCAB))
    assert output.finish_reason == "error"
    assert isinstance(output.error, CheckpointMismatchError)
    assert f"layers [{victim}]" in str(output.error)
    assert not bench.cache.tiers.order
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
        assert not bench.cache.has_state(bench.prepare.namespace(""), [1], Lineage("nr", 9))


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
