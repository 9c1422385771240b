"""Conv windows of recomputed tokens and of the query, at a first layer, where cached inputs are the true ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdover.chunks import Assembly, CachedInputs, Chunk, ChunkOptions, Repair, Text, follow, rejoin
from holdover.chunks.initialiser import Last
from holdover.codec import Codec
from holdover.errors import RequestError
from tests.chunks.first_layer import EVERYTHING, WIDTH, FirstLayer
from tests.ops.families import CASES

LENGTHS = st.lists(st.integers(-2, 6).filter(bool), min_size=1, max_size=5).filter(lambda n: max(n) > 0)


def plan(lengths: list[int], chosen: set[int] | None = None) -> tuple[list[Chunk | Text], Repair]:
    """Distinct tokens everywhere; negative lengths are text. ``chosen`` index the chunks' positions."""
    context: list[Chunk | Text] = []
    token = 1
    for n in lengths:
        context.append((Chunk if n > 0 else Text)(tuple(range(token, token + abs(n)))))
        token += abs(n)
    assembly = Assembly.of(context, [0])
    selected = [p for i, p in enumerate(assembly.cached) if chosen and i in chosen]
    return context, assembly.repair(selected)


def entries_of(model: FirstLayer, context: list[Chunk | Text]):
    return [model.chunk(segment.tokens) for segment in context if isinstance(segment, Chunk)]


def true_window(model: FirstLayer, repair: Repair, position: int) -> torch.Tensor:
    tokens = [repair.assembly.tokens[p] for p in range(max(0, position - WIDTH + 1), position)]
    rows = model.table[torch.tensor(tokens, dtype=torch.int64)]
    return torch.cat([torch.zeros(WIDTH - 1 - len(rows), rows.shape[1]), rows])


def window(model: FirstLayer) -> torch.Tensor:
    return model.pool.conv(0)[model.slot]


@settings(max_examples=40)
@given(lengths=LENGTHS, chosen=st.sets(st.integers(0, 20)))
def test_true_predecessors(lengths, chosen) -> None:
    """Before every run and before the query the window holds the tokens that stand before it."""
    with torch.inference_mode():
        model, (context, repair) = FirstLayer(CASES[0]), plan(lengths, chosen)
        cached = CachedInputs.read(repair, entries_of(model, context), [], model.tiers, model.scratch)
        model.fresh(model.slot)
        window(model).fill_(9.0)
        stop = 0
        for run in repair.runs:
            follow(model.pool, model.slot, cached, stop, run.start)
            assert torch.equal(window(model), true_window(model, repair, run.start))
            model.run(model.slot, repair.assembly.tokens[run.start : run.stop])
            stop = run.stop
        follow(model.pool, model.slot, cached, stop, repair.assembly.query.start)
        assert torch.equal(window(model), true_window(model, repair, repair.assembly.query.start))


@settings(max_examples=40)
@given(lengths=LENGTHS, chosen=st.sets(st.integers(0, 20)), inputs=st.booleans())
def test_the_query_after_the_stream_alone(lengths, chosen, inputs) -> None:
    """Recomputed tokens saw each other only; the query sees the context's last tokens, from checkpoints if need be."""
    with torch.inference_mode():
        model, (context, repair) = FirstLayer(CASES[0], ChunkOptions(inputs=inputs)), plan(lengths, chosen)
        entries, query = entries_of(model, context), repair.assembly.query.start
        cached = CachedInputs.read(repair, entries, [query], model.tiers, model.scratch)
        assert not (inputs and cached.tails)
        Last().write(model.tiers, entries, model.slot, model.scratch)
        model.pool.adopt(model.slot, entries[-1].chain.copy(), entries[-1].checkpoint.restored)
        for run in repair.runs:
            model.run(model.slot, repair.assembly.tokens[run.start : run.stop])
        before = model.pool.temporal(0)[model.slot].clone()
        rejoin(model.pool, model.slot, cached)
        assert torch.equal(window(model), true_window(model, repair, query))
        assert torch.equal(model.pool.temporal(0)[model.slot], before)


@pytest.mark.parametrize("element", ["full", "int8"])
def test_seams_need_tails_only(element) -> None:
    """Runs at the starts of chunks see the ends of those before; conv inputs survive every codec."""
    dense = FirstLayer(CASES[0])
    model = FirstLayer(CASES[0], ChunkOptions(), packed=Codec(dense.layout, element=element))
    context, repair = plan([6, 5, -1, 2, 4], chosen={6, 7, 11, 13})
    entries, starts = entries_of(model, context), [run.start for run in repair.runs]
    cached = CachedInputs.read(repair, entries, starts, model.tiers, model.scratch)
    assert set(cached.tails) == {0, 1, 2}
    assert not model.pool.is_whole(model.scratch)
    model.fresh(model.slot)
    stop = 0
    for run in repair.runs:
        follow(model.pool, model.slot, cached, stop, run.start)
        assert torch.equal(window(model), true_window(model, repair, run.start))
        model.run(model.slot, repair.assembly.tokens[run.start : run.stop])
        stop = run.stop


def test_inputs_that_were_not_kept_are_asked_for() -> None:
    model, (context, repair) = FirstLayer(CASES[0], ChunkOptions()), plan([12], chosen={6})
    cached = CachedInputs.read(repair, entries_of(model, context), [6, 12], model.tiers, model.scratch)
    with pytest.raises(RequestError, match=r"token 3 of a chunk .* keep chunks with their inputs"):
        follow(model.pool, model.fresh(model.slot), cached, 0, 6)


def test_one_chunk_twice() -> None:
    model, chunk = FirstLayer(CASES[0], EVERYTHING), Chunk((1, 2))
    repair = Assembly.of([chunk, chunk], [0]).repair([2])
    cached = CachedInputs.read(repair, entries_of(model, [chunk, chunk]), [], model.tiers, model.scratch)
    follow(model.pool, model.fresh(model.slot), cached, 0, 2)
    assert torch.equal(window(model), true_window(model, repair, 2))
