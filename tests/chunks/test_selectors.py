"""Every selector against a scorer of a few lines that shares no code with it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdover.chunks import Assembly, Chunk, Text
from holdover.chunks.selectors import SELECTORS, Deviation, QueryAttention, Seam, SelectionContext

RATIOS = [0.0, 0.03, 0.2, 0.5, 1.0]
# lengths of chunks; negative ones are text
PROMPTS = {
    "plain": [16, 16, 16],
    "uneven": [1, 7, 30, 2],
    "text": [-3, 12, -1, 9, -2, 12],
    "single": [20],
    "single-behind-text": [-2, 20],
}


def context_of(lengths: list[int], ratio: float, seed: int = 0, query: int = 5) -> SelectionContext:
    segments = [(Chunk if n > 0 else Text)(tuple(range(abs(n)))) for n in lengths]
    assembly = Assembly.of(segments, range(query))
    size, g = assembly.query.start, torch.Generator().manual_seed(seed)
    attention = {
        layer: QueryAttention(
            torch.randn(query, 6, 8, generator=g), torch.randn(size, 2, 8, generator=g), scale=8**-0.5
        )
        for layer in (3, 7)
    }
    deviation = Deviation(torch.randn(size, 2, 4, generator=g), torch.randn(size, 2, 4, generator=g))
    # rows of text are written by nobody before a selector is asked
    deviation.cached[list(assembly.text)] = float("nan")
    return SelectionContext(assembly, ratio, deviation, attention)


def best(scores: dict[int, float], context: SelectionContext) -> list[int]:
    total = sum(stop - start for start, stop in context.assembly.chunks)
    ranked = sorted(scores, key=lambda position: (-scores[position], position))
    return sorted(ranked[: round(context.ratio * total)])


def within(context: SelectionContext) -> list[tuple[int, int, int]]:
    """(position, start and stop of its chunk)."""
    return [(p, start, stop) for start, stop in context.assembly.chunks for p in range(start, stop)]


def scorer_all(context):
    return [p for p, _, _ in within(context)]


def scorer_none(context):
    return []


def scorer_epic(context):
    return best({p: -(p - start) for p, start, _ in within(context) if start > 0}, context)


def scorer_seam(context):
    seams = [start for start, _ in context.assembly.chunks if start > 0]
    if not seams:
        return []
    # a little less than half a token on: the token at a seam is nearer than the one before it
    return best({p: -min(abs(100 * (p - seam) + 49) for seam in seams) for p, _, _ in within(context)}, context)


def scorer_cacheblend(context):
    cached, fresh = (x.tolist() for x in context.deviation)
    distance = {
        p: sum((a - b) ** 2 for x, y in zip(cached[p], fresh[p], strict=True) for a, b in zip(x, y, strict=True))
        for p, _, _ in within(context)
    }
    return best(distance, context)


def scorer_prophetkv(context):
    votes = torch.zeros(context.assembly.query.start, dtype=torch.float64)
    for queries, keys, scale in context.attention.values():
        for q in range(queries.shape[0]):
            for head in range(queries.shape[1]):
                shared = keys[:, head // (queries.shape[1] // keys.shape[1])]
                votes += torch.softmax((shared @ queries[q, head]).double() * scale, dim=0)
    return best({p: float(votes[p]) for p, _, _ in within(context)}, context)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", SELECTORS)
def test_equals_its_scorer(name: str, prompt: str, ratio: float) -> None:
    context = context_of(PROMPTS[prompt], ratio, seed=len(prompt))
    selected = SELECTORS[name]().select(context)
    assert list(selected) == globals()[f"scorer_{name}"](context)
    # what is selected can be recomputed
    repair = context.assembly.repair(selected)
    exempt = name in ("all", "none") or (name in ("epic", "seam") and not all(context.seams[:1]))
    assert exempt or repair.ratio <= ratio + 0.5 / len(context.candidates)


@pytest.mark.parametrize("name", SELECTORS)
def test_twice_the_same(name: str) -> None:
    context = context_of(PROMPTS["text"], 0.3)
    assert SELECTORS[name]().select(context) == SELECTORS[name]().select(context)


@given(window=st.integers(0, 20), lengths=st.lists(st.integers(-3, 12).filter(bool), min_size=1, max_size=5))
def test_a_fixed_window(window: int, lengths: list[int]) -> None:
    if not any(n > 0 for n in lengths):
        return
    context = context_of(lengths, 0.2)
    seams = [start for start, _ in context.assembly.chunks if start > 0]
    wanted = [p for p, _, _ in within(context) if any(seam - window <= p < seam + window for seam in seams)]
    assert list(Seam(window).select(context)) == wanted


@pytest.mark.parametrize(("name", "probe"), [("cacheblend", "context"), ("prophetkv", "query")])
def test_says_what_it_needs(name: str, probe: str) -> None:
    selector, assembly = SELECTORS[name](), context_of(PROMPTS["plain"], 0.2).assembly
    assert selector.probe == probe
    with pytest.raises(ValueError, match=probe):
        selector.select(SelectionContext(assembly, 0.2))


@pytest.mark.parametrize("name", ["epic", "seam", "all", "none"])
def test_needs_nothing(name: str) -> None:
    assembly = context_of(PROMPTS["plain"], 0.2).assembly
    assert SELECTORS[name]().probe == "none"
    SELECTORS[name]().select(SelectionContext(assembly, 0.2))


def test_latent_attention_has_one_head() -> None:
    """Absorbed queries share one key head."""
    context = context_of([8, 8], 0.25)
    attention = {1: QueryAttention(torch.randn(3, 4, 10), torch.randn(16, 1, 10), 0.3)}
    context = SelectionContext(context.assembly, 0.25, None, attention)
    assert list(SELECTORS["prophetkv"]().select(context)) == scorer_prophetkv(context)
