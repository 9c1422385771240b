"""Random histories of requests, steps and aborts on tiny pools: always sound, always the reference's tokens."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdover.prefix.policies import DEFAULT_POLICY, AnyOf, EndOfRequest, EveryN, NoCheckpoints, Wanted
from tests.engine.harness import TOY, Bench, assert_greedy

# few tokens and short prompts, so that prefixes meet
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=9)
POLICIES = [AnyOf((EndOfRequest(), EveryN(3), Wanted())), DEFAULT_POLICY, NoCheckpoints(), Wanted()]


class Histories(RuleBasedStateMachine):
    bench: Bench

    @initialize(
        slots=st.integers(1, 4),
        rows=st.integers(14, 40),
        running=st.integers(1, 5),
        chunk=st.integers(1, 7),
        policy=st.sampled_from(POLICIES),
    )
    def start(self, slots, rows, running, chunk, policy):
        self.bench = Bench(TOY, slots=slots, rows=rows, max_running=running, chunk=chunk, policy=policy)
        self.ids: list[str] = []
        self.checked: set[str] = set()

    @rule(
        prompt=PROMPTS,
        tokens=st.integers(1, 5),
        salt=st.sampled_from(["", "", "other"]),
        use_cache=st.sampled_from([True, True, True, False]),
        wanted=st.lists(st.integers(-1, 12), max_size=3),
        prompt_logprobs=st.sampled_from([None, None, None, 8]),
    )
    def add(self, prompt, tokens, salt, use_cache, wanted, prompt_logprobs):
        request = {"salt": salt, "use_cache": use_cache, "checkpoint_at": tuple(wanted)}
        self.ids.append(self.bench.add(prompt, tokens, request=request, prompt_logprobs=prompt_logprobs))

    @rule(count=st.integers(1, 4))
    def step(self, count):
        for _ in range(count):
            self.bench.step()

    @precondition(lambda self: self.ids)
    @rule(which=st.integers(0, 7))
    def abort(self, which):
        request_id = self.ids[which % len(self.ids)]
        ended = request_id in self.bench.outputs
        update = self.bench.core.abort(request_id)
        assert (update is None) == ended
        if update is not None:
            self.bench.take(update)

    @rule()
    def flush(self):
        self.bench.cache.flush()

    @invariant()
    def sound(self):
        if not hasattr(self, "bench"):
            return
        self.bench.check()
        for request_id, output in self.bench.outputs.items():
            if request_id not in self.checked:
                self.checked.add(request_id)
                assert output.finish_reason in ("length", "abort")
                if output.token_ids:
                    assert_greedy(TOY, output)
                if output.finish_reason == "length" and output.prompt_logprobs is not None:
                    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)

    def teardown(self):
        if hasattr(self, "bench"):
            self.bench.run(limit=self.bench.steps + 500)
            self.sound()
            assert set(self.bench.outputs) == set(self.ids)
            self.bench.assert_empty()


TestHistories = Histories.TestCase
TestHistories.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
