"""Contexts that are composed for measurement, against plain runs of the same tokens."""

from __future__ import annotations

import pytest
import torch

from holdover.chunks import Chunk, ChunkOptions, StateErrors
from holdover.chunks.selectors import SELECTORS
from holdover.errors import ConfigError
from holdover.evaluation.chunks.bench import Workbench
from holdover.evaluation.chunks.case import Case, Cut
from holdover.evaluation.chunks.diagnose import diagnose, mean_errors
from tests.engine.harness import host_of, prompt_of, reference
from tests.helpers import assert_close

MODELS = ["qwen3_5", "kimi_linear", "granite_hybrid_rope"]
EVERYTHING = ChunkOptions(transitions=True, bodies=True, inputs=True)
INITIALISERS = ["last", "random", "exact", "seams", "zero"]
every_model = pytest.mark.parametrize("name", MODELS)
CASE = Case((Chunk(prompt_of(17)), prompt_of(3, seed=1), Chunk(prompt_of(9, seed=2))), prompt_of(4, seed=3), (7, 8, 9))
BARE = Case((Chunk(prompt_of(17)), Chunk(prompt_of(20, seed=1)), Chunk(prompt_of(9, seed=2))), (5,))


def bench_of(name: str, case: Case) -> Workbench:
    bench = Workbench(host_of(name), [case], EVERYTHING)
    bench.open(case)
    return bench


def logits_of(name: str, case: Case) -> torch.Tensor:
    """Log-probabilities of the unmodified model after the query and each following token but the last."""
    context = tuple(token for part in case.parts for token in (part.tokens if isinstance(part, Chunk) else part))
    return reference(name, (*context, *case.query, *case.following))[-len(case.following) - 1 : -1]


@every_model
def test_everything_run_again_is_a_full_prefill(name: str) -> None:
    bench = bench_of(name, CASE)
    wanted = logits_of(name, CASE)
    assert_close("exact", bench.exact().log_softmax(-1), wanted, 1e-4)
    repair = bench.compose(bench.choose("all", 1.0), "last")
    assert repair.is_full
    assert max(bench.errors().layers.values()) < 1e-5
    assert_close("all", bench.composed().log_softmax(-1), wanted, 1e-4)
    # what was composed is used up, and what is true is not
    assert_close("exact", bench.exact().log_softmax(-1), wanted, 1e-4)


@every_model
def test_one_chunk_alone_is_exact_with_every_state_but_none(name: str) -> None:
    case = Case((Chunk(prompt_of(17)),), prompt_of(4, seed=3), (7, 8))
    bench = bench_of(name, case)
    for initialiser in INITIALISERS[:-1]:
        bench.compose((), initialiser)
        assert max(bench.errors().layers.values()) < 1e-5, initialiser
        assert_close(initialiser, bench.composed().log_softmax(-1), logits_of(name, case), 1e-4)
    bench.compose((), "zero")
    assert set(bench.errors().layers.values()) == {1.0}


@every_model
def test_selectors_choose_as_many_as_the_ratio_says(name: str) -> None:
    bench = bench_of(name, BARE)
    for selector in set(SELECTORS) - {"all", "none"}:
        chosen = bench.choose(selector, 0.25)
        assert len(chosen) == round(0.25 * 46), selector
        assert list(chosen) == sorted(set(chosen))
        for initialiser in INITIALISERS:
            repair = bench.compose(chosen, initialiser)
            assert set(chosen) <= set(repair.selected)
            assert (set(chosen) == set(repair.selected)) == (initialiser != "seams")
            assert bench.composed().isfinite().all()


@every_model
def test_errors_by_depth(name: str) -> None:
    *_, found = diagnose(host_of(name), [BARE, BARE], INITIALISERS)
    assert [len(errors) for errors in found.values()] == [2] * len(INITIALISERS)
    errors = {name: mean_errors(one).layers for name, one in found.items()}
    layers = [layer.index for layer in host_of(name).layout.state.layers]
    assert all(list(one) == layers for one in errors.values())
    # the first layer's inputs depend on nothing but the tokens: with its seams run again nothing is left to be wrong
    assert errors["seams"][layers[0]] < 1e-5
    assert errors["exact"][layers[0]] > 1e-3
    assert errors["last"][layers[0]] > errors["seams"][layers[0]]
    assert set(errors["zero"].values()) == {1.0}


def test_the_mean_is_of_each_layer() -> None:
    assert mean_errors([StateErrors({0: 1.0, 2: 4.0}), StateErrors({0: 2.0, 2: 0.0})]).layers == {0: 1.5, 2: 2.0}


def test_chunks_are_built_once_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case((Chunk(prompt_of(8)), Chunk(prompt_of(8)), Chunk(prompt_of(5, seed=1))), (5,))
    bench = bench_of("qwen3_5", case)
    before = bench.counters["chunks_built"]
    assert before == 2
    for initialiser in INITIALISERS:
        bench.compose(bench.choose("epic", 0.3), initialiser)
    assert bench.counters["chunks_built"] == before


def test_pieces_of_a_text() -> None:
    cases = Cut(contexts=2, chunks=2, tokens=3, query=2, following=1).cases(list(range(20)), 9)
    assert [case.chunks for case in cases] == [((0, 1, 2), (3, 4, 5)), ((9, 10, 11), (12, 13, 14))]
    assert [(case.query, case.following) for case in cases] == [((6, 7), (8,)), ((15, 16), (17,))]
    assert len(cases[0]) == 9
    with pytest.raises(ConfigError, match="the text has 17 tokens and 2 pieces of 9"):
        Cut(2, 2, 3, 2, 1).cases(list(range(17)), 9)
    with pytest.raises(ConfigError, match="9 tokens do not fit into the model's context of 8"):
        Cut(2, 2, 3, 2, 1).cases(list(range(20)), 8)


def test_a_case_that_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="do not fit into the model's context"):
        Workbench(host_of("qwen3_5"), [Case((Chunk((1,) * 600),), (1,))], ChunkOptions())
