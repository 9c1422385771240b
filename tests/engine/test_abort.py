"""A request may be aborted at any moment; what it computed is kept for the next one, and nothing else of it."""

import pytest

from tests.engine.harness import TOY, Bench, assert_greedy, prompt_of
from tests.engine.small import SMALL
from tests.engine.toy import VOCAB


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_abort_after_steps(name: str, steps: int) -> None:
    """Waiting, in prefill (three chunks) and in decode."""
    bench = Bench(name)
    aborted, other = bench.add(prompt_of(40)), bench.add(prompt_of(20, seed=1), tokens=4)
    for _ in range(steps):
        bench.step()
    bench.abort(aborted)
    assert bench.outputs[aborted].finish_reason == "abort"
    assert bench.core.abort(aborted) is None
    bench.run()
    assert_greedy(name, bench.outputs[other])
    again = bench.serve(prompt_of(41), tokens=2)
    assert_greedy(name, again)
    assert again.cache.state_depth == (0, 16, 32, 40)[min(steps, 3)] or again.cache.kv_depth >= 40
    assert bench.core.stats.aborted == 1
    bench.assert_empty()


@pytest.mark.parametrize("steps", range(24))
def test_abort_of_each_request_under_pressure(steps: int) -> None:
    """After a preemption too: the victim waits, and owns nothing."""
    for victim in range(3):
        bench = Bench(TOY, slots=3, rows=24, chunk=4)
        ids = [bench.add(prompt_of(5, seed=i, vocab=VOCAB), tokens=12) for i in range(3)]
        for _ in range(steps):
            bench.step()
        if ids[victim] not in bench.outputs:
            bench.abort(ids[victim])
        bench.run(limit=300)
        for output in bench.outputs.values():
            if output.token_ids:
                assert_greedy(TOY, output)
        bench.assert_empty()


def test_unknown_request() -> None:
    bench = Bench(TOY)
    assert bench.core.abort("nobody") is None
    assert bench.core.stats.aborted == 0


def test_an_id_cannot_be_used_twice_at_once() -> None:
    from holdover.errors import RequestError

    bench = Bench(TOY)
    bench.add([1], request={"id": "one"})
    with pytest.raises(RequestError, match="one is in use"):
        bench.add([2], request={"id": "one"})
    bench.run()
    bench.outputs.clear()
    bench.add([2], request={"id": "one"})
    bench.run()
    bench.assert_all_greedy()
