"""Prompts fill their context, pairs share one selection, and rows are judged against their twins."""

from __future__ import annotations

import pytest

from holdover.chunks import Assembly
from holdover.chunks.selectors import SelectionContext
from holdover.chunks.selectors.seam import Seam

# a source distribution comes without the benchmarks
arms = pytest.importorskip("benchmarks.chunk_arms")
chunks = pytest.importorskip("benchmarks.chunks")


@pytest.mark.parametrize("context", [600, 1024, 1085, 4096])
def test_a_prompt_and_its_first_token_fill_the_context(context: int) -> None:
    prompts = arms.prompts_of(context, 3, 1000)
    assert {len(prompt.tokens) for prompt in prompts} == {context - 1}
    assert len({frozenset(prompt.chunks) for prompt in prompts}) == 1, "the same chunks"
    assert all(len(chunk.tokens) <= arms.CHUNK for chunk in prompts[0].chunks)
    assert Assembly.of([*prompts[0].chunks], prompts[0].query).cached


def test_a_pair_recomputes_what_its_first_one_chose() -> None:
    first, second = (Assembly.of([*prompt.chunks], [1]) for prompt in arms.prompts_of(1300, 2, 1000))
    shared = arms.Paired(Seam())
    chosen = shared.select(SelectionContext(first, 0.2))
    assert chosen == Seam().select(SelectionContext(first, 0.2))
    assert shared.select(SelectionContext(second, 0.4)) == chosen


def test_judged() -> None:
    cell = {"model": "m", "context": 4096, "selector": "epic", "ratio": 0.2, "batch": 1, "residence": "device"}
    last = cell | {"initialiser": "last", "ttft_ms": 4.0, "p90": 4.5, "share": 0.44}
    exact = cell | {"initialiser": "exact", "ttft_ms": 3.5, "p90": 3.9, "share": 0.4}
    row = chunks.judged(last, [last, exact], chunks.CPU)
    assert (row["met"], row["not_slower_than_exact"]) == (True, False)
    assert "met" not in chunks.judged(last | {"context": 1024}, [last, exact], chunks.CPU)
    assert chunks.judged(exact, [last, exact], chunks.CPU) is exact
