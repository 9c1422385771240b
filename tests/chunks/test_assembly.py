from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdover.chunks import Assembly, Chunk, Copy, Placed, Text
from holdover.chunks.selectors import SELECTORS, SelectionContext
from holdover.errors import RequestError

TOKENS = st.integers(0, 9)
# few distinct chunks, so that the same one occurs twice; lengths around a unit of 4
POOL = [tuple(range(n)) for n in (1, 3, 4, 5)]
SEGMENTS = st.one_of(
    st.sampled_from(POOL).map(Chunk), st.lists(TOKENS, max_size=3).map(lambda tokens: Text(tuple(tokens)))
)
CONTEXTS = st.lists(SEGMENTS, min_size=1, max_size=6).filter(lambda s: any(isinstance(x, Chunk) for x in s))
QUERIES = st.lists(TOKENS, min_size=1, max_size=4)


@given(context=CONTEXTS, query=QUERIES, data=st.data())
def test_every_position_comes_from_one_place(context, query, data) -> None:
    assembly = Assembly.of(context, query)
    chosen = data.draw(st.lists(st.sampled_from(assembly.cached), unique=True)) if assembly.cached else []
    repair = assembly.repair(sorted(chosen))
    assert list(assembly.tokens) == [t for segment in context for t in segment.tokens] + query

    kept = [p for copy in repair.copies for p in range(copy.target, copy.target + copy.length)]
    run = [p for positions in repair.runs for p in positions]
    everything = kept + run + list(assembly.query)
    assert sorted(everything) == list(range(len(assembly.tokens)))
    assert kept == sorted(kept)
    assert run == sorted(run)
    assert set(run) == set(chosen) | set(assembly.text) == repair.positions
    assert all(later.start > earlier.stop for earlier, later in zip(repair.runs, repair.runs[1:], strict=False))

    chunks = [segment.tokens for segment in context if isinstance(segment, Chunk)]
    for copy in (*repair.copies, *assembly.copies):
        assert copy.length > 0
        placed = assembly.chunks[copy.chunk]
        assert copy.delta == placed.start
        source = chunks[copy.chunk][copy.source : copy.source + copy.length]
        assert assembly.tokens[copy.target : copy.target + copy.length] == source
    assert [(c.chunk, c.source, c.length) for c in assembly.copies] == [(i, 0, len(t)) for i, t in enumerate(chunks)]
    for position in assembly.cached:
        start, stop = assembly.chunks[assembly.chunk_at(position)]
        assert start <= position < stop

    assert sum(repair.usage) == len(assembly.tokens)
    assert repair.usage == (len(kept), len(chosen), len(assembly.text) + len(query))
    assert repair.ratio == len(chosen) / sum(map(len, chunks))
    assert repair.is_full == (not kept)


@given(context=CONTEXTS, query=QUERIES)
def test_all_and_none(context, query) -> None:
    assembly = Assembly.of(context, query)
    everything, nothing = (
        assembly.repair(SELECTORS[name]().select(SelectionContext(assembly, 0.5))) for name in ("all", "none")
    )
    assert everything.is_full
    assert everything.copies == ()
    assert everything.runs == (range(assembly.query.start),)
    assert everything.ratio == 1.0
    assert nothing.copies == assembly.copies
    assert nothing.positions == frozenset(assembly.text)


def test_text_around_and_between() -> None:
    """A system prompt, a chunk, a separator, the same chunk again, a template, the query."""
    chunk = Chunk((5, 6, 7))
    assembly = Assembly.of([Text((1, 2)), chunk, Text((3,)), chunk, Text((4,))], [8, 9])
    assert assembly.chunks == (Placed(2, 5), Placed(6, 9))
    assert assembly.text == (0, 1, 5, 9)
    repair = assembly.repair([2, 6, 7])
    assert repair.runs == (range(0, 3), range(5, 8), range(9, 10))
    assert repair.copies == (Copy(0, 1, 3, 2), Copy(1, 2, 8, 1))
    assert [copy.delta for copy in repair.copies] == [2, 6]
    assert repair.usage == (3, 3, 6)


@pytest.mark.parametrize(
    ("context", "query", "message", "param"),
    [
        ([Chunk(())], [1], "a chunk is empty", "context"),
        ([Chunk((1,)), Chunk(())], [1], "a chunk is empty", "context"),
        ([Chunk((1,))], [], "the query is empty", "query"),
        ([Chunk((1,)), Text((2,))], [], "the query is empty", "query"),
        ([], [1], "no chunk", "context"),
        ([Text((1,))], [1], "no chunk", "context"),
    ],
)
def test_refuses(context, query, message, param) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        Assembly.of(context, query)
    assert caught.value.param == param


@pytest.mark.parametrize("selected", [[0], [2, 1], [1, 1], [4], [-1]])
def test_refuses_what_cannot_be_selected(selected) -> None:
    """Text, the query, what is out of order, twice, or nowhere."""
    assembly = Assembly.of([Text((1,)), Chunk((5, 6, 7))], [8])
    with pytest.raises(ValueError, match="ascending and within chunks"):
        assembly.repair(selected)
