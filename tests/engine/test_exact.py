"""What the engine generates is what unmodified Transformers generates uncached: the same tokens and distributions."""

import pytest

from tests.arch.table import ARCHITECTURES
from tests.engine.harness import CHUNK, WINDOW, Bench, assert_greedy, prompt_of

# one token, shorter than the conv window, around the chunk size, several chunks
LENGTHS = [1, 2, WINDOW - 1, WINDOW, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5, 70]
ALONE = [1, WINDOW - 1, CHUNK, 70]

pytestmark = pytest.mark.parametrize("name", ARCHITECTURES)


@pytest.mark.parametrize("length", ALONE)
def test_alone(name: str, length: int) -> None:
    assert_greedy(name, Bench(name).serve(prompt_of(length)))


def test_in_a_batch_of_unequal_lengths(name: str) -> None:
    bench = Bench(name)
    # unequal ends too: the batch shrinks while it runs
    for i, length in enumerate(LENGTHS):
        bench.add(prompt_of(length, seed=i), tokens=3 + i)
    bench.run()
    assert len(bench.outputs) == len(LENGTHS)
    bench.assert_all_greedy()


def test_requests_that_come_while_others_run(name: str) -> None:
    bench = Bench(name, max_running=3)
    for i, length in enumerate([5, 40, 1, 17, 3]):
        bench.add(prompt_of(length, seed=i), tokens=5)
        bench.step()
    bench.run()
    bench.assert_all_greedy()


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 16, 33])
def test_prefill_in_chunks(name: str, chunk: int) -> None:
    assert_greedy(name, Bench(name, chunk=chunk).serve(prompt_of(37), tokens=3))
