"""Composed contexts against true ones layer by layer, and exact composition from other inputs."""

from __future__ import annotations

import pytest
import torch

from holdover.chunks import Chunk, ChunkOptions
from holdover.evaluation.chunks.bench import Workbench
from holdover.evaluation.chunks.case import Case
from holdover.evaluation.chunks.depth import ATTENDED, STATE, Depth
from holdover.evaluation.chunks.inputs import compose_from
from tests.engine.harness import host_of, prompt_of
from tests.helpers import assert_close

MODELS = ["qwen3_5", "kimi_linear", "granite_hybrid_rope"]
every_model = pytest.mark.parametrize("name", MODELS)
CHUNKS = (Chunk(prompt_of(17)), Chunk(prompt_of(20, seed=1)), Chunk(prompt_of(9, seed=2)))
QUERY = prompt_of(4, seed=3)


def bench_of(name: str, chunks: tuple[Chunk, ...]) -> Workbench:
    case = Case(chunks, QUERY)
    bench = Workbench(host_of(name), [case], ChunkOptions(transitions=True))
    bench.open(case)
    return bench


@every_model
def test_maps_of_true_inputs_compose_to_the_true_state(name: str) -> None:
    bench = bench_of(name, CHUNKS)
    states, recursion = compose_from(bench.view)
    bench.compose((), "exact")
    view, pool = bench.view, bench.view.tiers.native.pool
    for layer in pool.layout.layers:
        true, made = (pool.temporal(layer.index)[slot] for slot in (view.true.slot, view.made.slot))
        assert_close(f"true {layer.index}", states["true"][layer.index], true, 1e-4)
        assert_close(f"isolated {layer.index}", states["isolated"][layer.index], made, 1e-4)
    for layer, error in bench.errors().layers.items():
        carried, injected = recursion.carried[layer], recursion.injected[layer]
        # the two terms add up to the error, in whatever directions
        assert abs(carried - injected) - 1e-4 <= error <= carried + injected + 1e-4
        assert carried > 0
        assert injected > 0


@every_model
def test_each_source_changes_its_own_map_only(name: str) -> None:
    states, _ = compose_from(bench_of(name, CHUNKS[:2]).view)
    for layer, true in states["true"].items():
        # a first chunk's maps are true, so with two chunks offsets differ in what is added last
        added = true - states["true-transitions"][layer]
        assert_close(f"layer {layer}", states["true-offsets"][layer] - states["isolated"][layer], added, 1e-3)
        assert added.norm() > 1e-4 * true.norm()
        assert not torch.equal(states["true-transitions"][layer], states["isolated"][layer])


@every_model
def test_one_chunk_injects_nothing(name: str) -> None:
    _, recursion = compose_from(bench_of(name, CHUNKS[:1]).view)
    assert set(recursion.carried.values()) == {0.0}
    assert max(recursion.injected.values()) < 1e-4


@every_model
def test_parts_of_a_context(name: str) -> None:
    bench = bench_of(name, CHUNKS)
    layout, depth = host_of(name).layout, Depth(bench.view)
    bench.compose((), "last")
    found = depth.errors()
    rows = {"kimi_linear": ["latents", "rotary keys"]}.get(name, ["keys", "values"])
    assert list(found) == [STATE, *rows, ATTENDED]
    assert list(found[STATE]) == [layer.index for layer in layout.state.layers]
    for part in (*rows, ATTENDED):
        assert list(found[part]) == [layer.index for layer in layout.kv.layers]
    assert min(found[ATTENDED].values()) > 1e-4
    bench.compose(bench.choose("all", 1.0), "last")
    assert max(error for errors in depth.errors().values() for error in errors.values()) < 1e-4


def test_text_goes_into_the_chunk_behind_it() -> None:
    case = Case(((1, 2), Chunk((3,)), (4,), (5,), Chunk((6, 7)), (8,)), (9,), (10,))
    bare = case.without_text()
    assert bare.chunks == ((1, 2, 3), (4, 5, 6, 7, 8))
    assert (bare.query, bare.following, len(bare)) == ((9,), (10,), len(case))
