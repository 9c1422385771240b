"""The engine keeps the states that its policy wants, and no others."""

from holdover.prefix.policies import NoCheckpoints
from holdover.state import EXACT
from tests.engine.harness import TOY, Bench, prompt_of


class Counting(NoCheckpoints):
    """Every depth, twice over, and some that do not exist."""

    def prompt_depths(self, prompt):
        return [*range(-2, prompt.length + 5), *range(prompt.length)]

    def during_decode(self, depth):
        return True


def test_the_engine_takes_what_a_policy_wants_and_no_more() -> None:
    bench = Bench(TOY, slots=40, policy=Counting())
    output = bench.serve(prompt_of(9, vocab=8), tokens=5)
    whole = output.prompt_token_ids + output.token_ids
    namespace = bench.prepare.namespace("")
    depths = [d for d in range(1, len(whole) + 1) if bench.cache.has_state(namespace, whole[:d], EXACT)]
    # the last token was never run
    assert depths == list(range(1, 14))
    assert bench.cache.counters["checkpoints_published"] == 13


def test_policies_that_keep_nothing_leave_nothing() -> None:
    bench = Bench(TOY, policy=NoCheckpoints())
    bench.serve(prompt_of(9, vocab=8))
    assert not bench.cache.roots
