"""Random histories on a real model with logs and drafts: always sound, always the reference's distributions."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdover.prefix.policies import AnyOf, EndOfRequest, EveryN, NoCheckpoints, PromptOnly, Wanted
from tests.engine.harness import Bench
from tests.engine.test_speculation import CHEAP, Oracle, assert_forced

TOKENS = st.integers(0, 1)
POLICIES = [AnyOf((EndOfRequest(), EveryN(3), Wanted())), PromptOnly(), NoCheckpoints()]


class Histories(RuleBasedStateMachine):
    """Texts are forced, so that drafts may be right without running the model twice."""

    bench: Bench

    @initialize(
        slots=st.integers(1, 4),
        rows=st.integers(20, 45),
        chunk=st.integers(1, 6),
        policy=st.sampled_from(POLICIES),
        drafts=st.integers(0, 3),
        spare=st.integers(2, 4),
    )
    def start(self, slots, rows, chunk, policy, drafts, spare) -> None:
        sizes = {"slots": slots, "rows": rows, "chunk": chunk, "policy": policy, "max_running": 3}
        options = {"speculate": "ngram", "draft_tokens": drafts} if drafts else {"decode": "deferred"}
        self.bench = Bench(CHEAP, merge_interval=drafts + spare, **sizes, **options)
        if drafts:
            self.bench.core.speculator._proposer = Oracle()
        self.ids: list[str] = []
        self.checked: set[str] = set()

    @rule(
        prompt=st.lists(TOKENS, min_size=1, max_size=7),
        forced=st.lists(TOKENS, min_size=6, max_size=6),
        tokens=st.integers(1, 8),
        wanted=st.lists(st.integers(1, 7), max_size=1),
    )
    def add(self, prompt, forced, tokens, wanted) -> None:
        request = {"checkpoint_at": tuple(wanted)}
        self.ids.append(self.bench.add(prompt, tokens, request=request, forced=tuple(forced)))

    @rule(count=st.integers(1, 4))
    def step(self, count) -> None:
        for _ in range(count):
            self.bench.step()

    @precondition(lambda self: self.ids)
    @rule(which=st.integers(0, 3))
    def abort(self, which) -> None:
        request_id = self.ids[which % len(self.ids)]
        if request_id not in self.bench.outputs:
            self.bench.abort(request_id)

    @rule()
    def flush(self) -> None:
        self.bench.cache.flush()

    @invariant()
    def sound(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.check()
        for request_id in self.bench.outputs.keys() - self.checked:
            self.checked.add(request_id)
            output = self.bench.outputs[request_id]
            assert output.finish_reason in ("length", "abort")
            if output.token_ids:
                assert_forced(CHEAP, output)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.run(limit=self.bench.steps + 500)
            self.sound()
            assert set(self.bench.outputs) == set(self.ids)
            self.bench.assert_empty()


TestHistories = Histories.TestCase
TestHistories.settings = settings(deadline=None, max_examples=12, stateful_step_count=12)
