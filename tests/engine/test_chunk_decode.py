"""What follows a composed context: drafts, logs, chunks around the usual length and as long as the context allows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import pytest

from holdover.chunks import Chunk, ChunkOptions
from holdover.chunks.selectors import Probe, SelectionContext
from holdover.engine.hf.host import HostModel
from holdover.errors import RequestError
from tests.engine.chunk_bench import QUERY, ChunkBench, chunks_of
from tests.engine.harness import RTOL, _build, assert_greedy, distributions, host_of, prompt_of
from tests.engine.heads import host_with_head
from tests.helpers import assert_close

NAME = "small-qwen3_5"
LENGTHS = [1, 511, 512, 513]


@cache
def long_host() -> HostModel:
    """Its positions are computed, not looked up: it can go on beyond what its configuration says."""
    return HostModel(_build(NAME), replace(host_of(NAME).layout, max_context=2000))


def long_bench(**options) -> ChunkBench:
    return ChunkBench(NAME, host=long_host(), **{"rows": 4000, "chunk": 512, "extras": ChunkOptions(), **options})


@dataclass(frozen=True)
class Behind:
    """Every token behind the first chunk, whose rows are true where it stands."""

    probe: ClassVar[Probe] = "none"

    def select(self, context: SelectionContext) -> tuple[int, ...]:
        return tuple(p for p in context.candidates if p >= context.assembly.chunks[0].stop)


@pytest.mark.parametrize("selector", ["none", "epic", "prophetkv"])
@pytest.mark.parametrize("speculate", ["ngram", "mtp"])
def test_drafts_change_nothing(speculate: str, selector: str) -> None:
    name, parts, query = "qwen3_5", [prompt_of(2, seed=4), *chunks_of(17, 9)], (*QUERY, *QUERY, *QUERY[:2])
    host = host_with_head(name) if speculate == "mtp" else None
    # what repeats can be looked up
    params = {"forced": (*QUERY, *QUERY, *QUERY)}
    plain = ChunkBench(name, decode="dense").ask(parts, query, 20, selector=selector, params=params)
    bench = ChunkBench(name, speculate=speculate, draft_tokens=3, merge_interval=6, host=host)
    output = bench.ask(parts, query, 20, selector=selector, params=params)
    assert bench.core.speculator.stats.drafted
    assert output.token_ids == plain.token_ids
    assert_close("logprobs", distributions(output.logprobs), distributions(plain.logprobs), RTOL)
    assert output.cache.lineage == plain.cache.lineage
    bench.assert_empty()


@pytest.mark.parametrize("initialiser", ["last", "exact"])
def test_a_log_is_begun_and_folded_behind_the_context(initialiser: str) -> None:
    name, parts = "qwen3_5", [*chunks_of(17, 9), prompt_of(1, seed=4)]
    plain = ChunkBench(name, decode="dense").ask(parts, tokens=14, initialiser=initialiser)
    bench = ChunkBench(name, decode="deferred", merge_interval=4)
    request = bench.want(parts, tokens=14, initialiser=initialiser)
    pool, lengths = bench.cache.tiers.native.pool, set()
    while bench.core.has_work:
        bench.step()
        lengths |= {pool.pending(sequence.place.lease.slot) for sequence in bench.running()}
    assert lengths == {0, 1, 2, 3}
    output = bench.outputs[request]
    assert_close("logprobs", distributions(output.logprobs), distributions(plain.logprobs), RTOL)
    # a chunk whose state is wanted while another request's log is full
    again = bench.ask(parts[::-1], tokens=6, initialiser=initialiser)
    assert again.error is None
    bench.assert_empty()


@pytest.mark.parametrize("length", LENGTHS)
def test_around_the_usual_length(length: int) -> None:
    bench, (first, second) = long_bench(), chunks_of(length, 20)
    alone = bench.ask([first], selector="none", tokens=2)
    assert_greedy(NAME, alone)
    assert alone.cache.reused == length
    behind = bench.ask([second, prompt_of(1, seed=4), first], selector=Behind(), initialiser="last", tokens=2)
    assert behind.cache.recomputed == length
    assert bench.cache.counters["chunks_built"] == 2
    bench.assert_empty()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("selector", ["epic", "seam", "prophetkv", "cacheblend"])
def test_the_same_chunk_twice(length: int, selector: str) -> None:
    bench, (chunk,) = long_bench(), chunks_of(length)
    copy = Chunk(tuple(chunk.tokens))
    output = bench.ask([chunk, copy], selector=selector, tokens=2)
    assert output.error is None
    assert bench.cache.counters["chunks_built"] == 1
    assert output.cache.recomputed == round(0.2 * 2 * length)
    assert output.cache.reused == 2 * length - output.cache.recomputed
    # with all behind the first run again on the first one's state, it is a prefill
    assert_greedy(NAME, long_bench().ask([chunk, chunk], selector=Behind(), tokens=2))
    bench.assert_empty()


def test_a_chunk_as_long_as_the_context() -> None:
    bench = long_bench(max_context=300)
    most = 300 - len(QUERY) - 1
    (chunk,) = chunks_of(most)
    output = bench.ask([chunk], selector="none", tokens=1)
    assert_greedy(NAME, output)
    assert (output.cache.reused, output.cache.new) == (most, len(QUERY))
    (longest,) = chunks_of(300)
    bench.build(longest)
    assert bench.prepare.chunk(longest.tokens) == longest
    with pytest.raises(RequestError, match="context"):
        bench.want([longest], tokens=1)
    with pytest.raises(RequestError, match="1 to 300 tokens"):
        bench.prepare.chunk(prompt_of(301))
    bench.assert_empty()
