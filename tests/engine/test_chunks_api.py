"""Chunks through `Engine`: texts and token ids, defaults of the engine, and what is said of the outcome."""

from __future__ import annotations

import pytest

from holdover.chunks import Chunk, ChunkOptions
from holdover.engine.chunks.settings import ChunkSettings
from holdover.engine.engine import Engine
from holdover.engine.options import EngineOptions
from holdover.engine.sampling import SamplingParams
from holdover.errors import CapacityError, ConfigError, RequestError
from tests.engine.harness import assert_greedy, budgets, host_of, loaded_of, prompt_of

NAME = "small-qwen3_5"
FOUR = SamplingParams(max_tokens=4)


def engine_of(**settings) -> Engine:
    sizes = budgets(host_of(NAME).layout, 8, 200)
    return Engine(loaded_of(NAME), EngineOptions(**sizes, chunk_size=8, poison=True, chunks=ChunkSettings(**settings)))


def test_texts_and_token_ids() -> None:
    engine = engine_of()
    chunk = engine.add_chunk("a document")
    assert chunk == Chunk(tuple(b"a document"))
    assert engine.add_chunk([1, 2, 3], salt="b") == Chunk((1, 2, 3))
    output = engine.generate(context=["read: ", chunk, [10], chunk], query="why?", params=FOUR)
    assert output.prompt_token_ids == tuple(b"read: a document\na documentwhy?")
    assert output.cache.lineage.startswith("composed(")
    # of 20 tokens a fifth
    assert (output.cache.reused, output.cache.recomputed, output.cache.new) == (16, 4, 11)
    assert output.cache.reason == "composed: 16 of 31 tokens taken from chunks, 4 of theirs run again"
    assert engine.core.cache.counters["chunks_built"] == 2
    engine.core.check_integrity()


def test_what_the_request_says_goes_before_what_the_engine_does() -> None:
    engine = engine_of(selector="none", ratio=0.5)
    parts = [Chunk(prompt_of(9)), Chunk(prompt_of(7, seed=1))]
    assert engine.generate(context=parts, query=[1], params=FOUR).cache.recomputed == 0
    assert engine.generate(context=parts, query=[1], params=FOUR, selector="epic").cache.recomputed == 7
    assert engine.generate(context=parts, query=[1], params=FOUR, selector="epic", ratio=0.0).cache.recomputed == 0
    whole = engine.generate(context=parts, query=[1], params=FOUR, selector="all")
    assert whole.cache.lineage is None
    assert_greedy(NAME, whole, logprobs=False)


def test_a_chunk_is_kept_until_it_is_added_again() -> None:
    engine = engine_of()
    for _ in range(3):
        engine.add_chunk([1, 2, 3])
    assert engine.core.cache.counters["chunks_built"] == 1
    engine.core.cache.flush()
    engine.add_chunk([1, 2, 3])
    assert engine.core.cache.counters["chunks_built"] == 2


def test_ordinary_requests_go_on_beside() -> None:
    engine = engine_of()
    stream = engine.stream(prompt_of(5), SamplingParams(max_tokens=12))
    next(stream)
    engine.add_chunk(prompt_of(20))
    engine.generate(context=[Chunk(prompt_of(20))], query=[1], params=FOUR)
    *_, last = stream
    assert_greedy(NAME, last.output, logprobs=False)


def test_refused() -> None:
    engine = engine_of(rows=10)
    with pytest.raises(RequestError, match="either prompts or a context"):
        engine.generate()
    with pytest.raises(RequestError, match="either prompts or a context"):
        engine.generate("a", context=[Chunk((1,))], query="b")
    with pytest.raises(RequestError, match="the query is empty"):
        engine.generate(context=[Chunk((1,))], query="", params=FOUR)
    with pytest.raises(RequestError, match="the query is empty"):
        engine.generate(context=[Chunk((1,))], params=FOUR)
    for content in ("", [1000], [1] * 201):
        with pytest.raises(RequestError):
            engine.add_chunk(content)
    with pytest.raises(CapacityError, match="a chunk of 11 tokens"):
        engine.add_chunk(prompt_of(11))
    assert not engine.core.has_work
    engine.core.check_integrity()


@pytest.mark.parametrize(
    "settings",
    [{"rows": 0}, {"extra_bytes": -1}, {"selector": "x"}, {"initialiser": "x"}, {"ratio": 2.0}, {"window": "x"}],
)
def test_settings_that_cannot_be(settings: dict) -> None:
    with pytest.raises(ConfigError):
        ChunkSettings(**settings)


def test_extras_have_a_limit_of_their_own() -> None:
    engine = engine_of(extras=ChunkOptions(inputs=True), extra_bytes=1)
    with pytest.raises(CapacityError, match="bytes of extras"):
        engine.add_chunk([1])
    engine.core.check_integrity()
