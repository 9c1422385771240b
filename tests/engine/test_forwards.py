"""One decode forward a step for everybody, and attention that reads each sequence's own rows and no more."""

from collections.abc import Callable

import pytest

from holdover.ops.attention import torch as attention
from holdover.prefix.policies import NoCheckpoints
from tests.arch.table import ARCHITECTURES
from tests.engine.harness import TOY, Bench, prompt_of
from tests.engine.toy import VOCAB

LENGTHS = (1, 9, 30, 4, 17)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows that attention is given, one entry a sequence and layer."""
    seen: list[int] = []

    def counting(kernel: Callable, position: int) -> Callable:
        def wrapped(*args):
            seen.extend(len(rows) for rows in args[position])
            return kernel(*args)

        return wrapped

    for name, position in (("paged_attention", 3), ("paged_latent_attention", 4)):
        monkeypatch.setattr(attention, name, counting(getattr(attention, name), position))
    return seen


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_decode_is_one_forward_that_reads_the_rows_once(name: str, reads: list[int]) -> None:
    bench = Bench(name, chunk=64)
    for i, length in enumerate(LENGTHS):
        bench.add(prompt_of(length, seed=i), tokens=20)
    # every step admits all and prefills one
    while any(s.remaining > 1 for s in bench.running()) or not bench.running():
        bench.step()
    for _ in range(3):
        lengths = [len(s.tokens) for s in bench.running()]
        assert len(lengths) == len(LENGTHS)
        forwards, decodes = bench.host.forwards, bench.core.stats.decode_forwards
        reads.clear()
        bench.step()
        assert (bench.host.forwards - forwards, bench.core.stats.decode_forwards - decodes) == (1, 1)
        # no padding to the longest
        assert sorted(reads) == sorted(lengths * len(bench.host.layout.kv.layers))


def test_prefill_and_decode_alternate() -> None:
    """A long prompt costs the others one chunk a step, never its whole prefill."""
    bench = Bench(TOY, chunk=8)
    first = bench.add(prompt_of(1, vocab=VOCAB), tokens=30)
    bench.step()
    bench.add(prompt_of(64, vocab=VOCAB), tokens=3)
    bench.host.rows_read.clear()
    for _ in range(8):
        before = bench.host.forwards
        bench.step()
        assert bench.host.forwards - before == 2
    assert len(bench.updates[first]) == 9
    bench.run()
    bench.assert_all_greedy()


def test_prompts_are_prefilled_in_order() -> None:
    bench = Bench(TOY, chunk=4)
    ids = [bench.add(prompt_of(10, seed=i, vocab=VOCAB), tokens=1) for i in range(3)]
    bench.run()
    assert list(bench.outputs) == ids


def test_stats_count_what_ran() -> None:
    bench = Bench(TOY, chunk=8)
    prompt = prompt_of(20, vocab=VOCAB)
    bench.serve(prompt, tokens=5, request={"checkpoint_at": (10,)})
    stats = bench.core.stats
    # chunks of 8, 2 and 8 tokens, then 2: a checkpoint ends a chunk
    assert (stats.prefill_forwards, stats.prefill_tokens) == (4, 20)
    assert (stats.decode_forwards, stats.decode_tokens) == (4, 4)
    bench.serve(prompt, tokens=5)
    assert (stats.prompt_tokens, stats.hit_tokens, stats.finished) == (40, 10, 2)


def test_a_prefill_that_nobody_waits_for_takes_longer_chunks() -> None:
    bench = Bench(TOY, chunk=4, idle_chunk=16, policy=NoCheckpoints())
    prompt = prompt_of(32, vocab=VOCAB)
    bench.serve(prompt, tokens=2)
    assert (bench.core.stats.prefill_forwards, bench.core.stats.prefill_tokens) == (2, 32)
    for _ in range(2):
        bench.add(prompt, tokens=2)
    bench.run()
    # while both are there, 4 tokens a forward
    assert bench.core.stats.prefill_forwards >= 2 + 8
