"""Repair of rows in place: any positions, each token seeing the rows up to its own, and taps that say what was run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from holdover.chunks.transition import affine
from holdover.engine.step import KVMode, Span, StateMode
from holdover.errors import CheckpointMismatchError
from tests.arch.table import ARCHITECTURES, build_model
from tests.engine.harness import RTOL, TOY, host_of, prompt_of, reference
from tests.engine.test_runner import LIVE, SCRATCH, TOKENS, World, assert_same
from tests.helpers import assert_close

every_model = pytest.mark.parametrize("name", ARCHITECTURES)
# one token; neighbours; both ends of the sequence; runs of several lengths
PLACES = [(11,), (7, 8, 9, 10), (0, 19), (1, 2, 5, 6, 7, 13, 18)]


def span_at(world: World, places: Sequence[int], slot: int = LIVE, tokens: Sequence[int] = TOKENS) -> Span:
    """The tokens at ``places``, as one span."""
    rows = world.rows[: places[-1] + 1]
    return Span(slot, [tokens[p] for p in places], places[0], rows, positions=places)


def rows_of(world: World, places: Sequence[int]) -> list[torch.Tensor]:
    """What every plane holds for the tokens at ``places``."""
    layers = world.kv.layout.layers
    return [plane[world.rows[list(places)]].clone() for layer in layers for plane in world.kv.planes(layer.index)]


def states_of(world: World, slot: int = LIVE) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in world.slots.tensors_of(slot)]


def assert_all_close(name: str, got: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for mine, theirs in zip(got, wanted, strict=True):
        assert_close(name, mine, theirs, RTOL)


@every_model
@pytest.mark.parametrize("piece", [1, 3, 20])
def test_over_all_positions_it_is_a_prefill(name: str, piece: int) -> None:
    wanted, world = World(name), World(name)
    stale = rows_of(world, range(20))
    for layer in world.kv.layout.layers:
        for plane in world.kv.planes(layer.index):
            plane[world.rows] = torch.randn_like(plane[world.rows])
    world.slots.reset(LIVE, b"")
    logits = []
    for start in range(0, 20, piece):
        span = span_at(world, range(start, min(20, start + piece)))
        logits.append(world.runner.run([span], kv=KVMode.OVERWRITE, logits=None).logits[0])
    assert_close("logits", torch.cat(logits).log_softmax(-1), reference(name, TOKENS), RTOL)
    assert_all_close("rows", rows_of(world, range(20)), stale)
    assert_all_close("state", states_of(world), states_of(wanted))
    assert world.slots.header(LIVE) == wanted.slots.header(LIVE)


@every_model
@pytest.mark.parametrize("places", PLACES)
def test_one_forward_is_one_token_after_the_other(name: str, places: tuple[int, ...]) -> None:
    """By the definition of a repair: each token runs at its place, on rows that those before it have repaired."""
    other = prompt_of(20, seed=1, vocab=8)
    slow, fast = World(name), World(name)
    wanted = []
    for p in places:
        # one token at the end of its rows: the very forward that decodes
        token = Span(LIVE, [other[p]], p, slow.rows[: p + 1])
        wanted.append(slow.runner.run([token], kv=KVMode.OVERWRITE).logits[0])
    kept = sorted(set(range(20)) - set(places))
    before = rows_of(fast, kept)
    out = fast.runner.run([span_at(fast, places, tokens=other)], kv=KVMode.OVERWRITE, logits=None)
    assert_close("logits", out.logits[0], torch.cat(wanted), RTOL)
    assert_all_close("rows", rows_of(fast, places), rows_of(slow, places))
    assert_all_close("state", states_of(fast), states_of(slow))
    assert_same(before, rows_of(fast, kept))
    # it has seen so many tokens, wherever they stand
    assert fast.slots.depth(LIVE) == slow.slots.depth(LIVE) == 20 + len(places)


@every_model
def test_sequences_with_places_of_their_own(name: str) -> None:
    alone, together = World(name), World(name)
    spans = [((1, 4, 9), LIVE), ((0, 2, 3), SCRATCH)]
    wanted = []
    for world in (alone, together):
        # a second sequence of the same tokens, on rows of its own
        world.rows = torch.cat([world.rows, world.kv.allocate(20)])
        world.slots.reset(SCRATCH, b"")
        world.runner.run([Span(SCRATCH, TOKENS, 0, world.rows[20:])])

    def made(world: World, places: tuple[int, ...], slot: int) -> Span:
        rows = world.rows[:20] if slot == LIVE else world.rows[20:]
        return Span(slot, [TOKENS[p] for p in places], places[0], rows[: places[-1] + 1], positions=places)

    for places, slot in spans:
        wanted.append(alone.runner.run([made(alone, places, slot)], kv=KVMode.OVERWRITE, logits=None).logits[0])
    both = together.runner.run([made(together, *s) for s in spans], kv=KVMode.OVERWRITE, logits=None)
    assert_close("logits", both.logits, torch.stack(wanted), RTOL)


@pytest.mark.parametrize("places", [(3, 7), (2, 3)])
def test_a_scratch_slot_may_run_any_places(places: tuple[int, ...]) -> None:
    world = World("qwen3_5")
    before = world.bytes()
    world.runner.run([span_at(world, places, SCRATCH)], kv=KVMode.DISCARD, state=StateMode.SCRATCH)
    assert_same(before, world.bytes())
    assert world.slots.depth(SCRATCH) == 2


@pytest.mark.parametrize("places", [(4, 3), (3, 3), (3, 4, 5), (4,)])
def test_places_that_cannot_be(places: tuple[int, ...]) -> None:
    world = World(TOY)
    span = Span(LIVE, [1, 1], 3, world.rows[:6], positions=places)
    with pytest.raises(ValueError, match="2 tokens from 3 on cannot stand at"):
        world.runner.run([span], kv=KVMode.OVERWRITE)
    assert world.slots.depth(LIVE) == 20


def test_what_is_appended_leaves_no_gap() -> None:
    world = World(TOY, computed=8)
    with pytest.raises(ValueError, match="one after the other"):
        world.runner.run([span_at(world, (8, 10))])
    assert world.slots.depth(LIVE) == 8


def test_rows_reach_the_last_place() -> None:
    world = World("qwen3_5")
    with pytest.raises(ValueError, match="has 7 rows"):
        world.runner.run([replace(span_at(world, (2, 7)), rows=world.rows[:7])], kv=KVMode.OVERWRITE)


def test_a_slot_of_nobody_is_refused() -> None:
    world = World("qwen3_5")
    with pytest.raises(CheckpointMismatchError, match="slot 3"):
        world.runner.run([span_at(world, (2, 7), slot=3)], kv=KVMode.OVERWRITE)


@every_model
def test_taps_say_what_made_the_state(name: str) -> None:
    """The recurrences' inputs are a map of the state before onto the state after, and the conv inputs its window."""
    world, layout = World(name), host_of(name).layout.state
    before = {layer.index: world.slots.temporal(layer.index)[LIVE].clone() for layer in layout.layers}
    seen: dict[tuple[int, str], torch.Tensor] = {}
    places = (1, 2, 5, 6, 13)
    world.runner.run(
        [span_at(world, places)],
        kv=KVMode.OVERWRITE,
        tap=lambda layer, key, x: seen.__setitem__((layer, key), x.clone()),
    )
    for layer in layout.layers:
        named = {key: x for (index, key), x in seen.items() if index == layer.index}
        conv = named.pop("conv")[0]
        assert torch.equal(world.slots.conv(layer.index)[LIVE], conv[-(layer.conv_width - 1) :])
        fixed = {key.removeprefix("fixed "): named.pop(key) for key in list(named) if key.startswith("fixed ")}
        timed = {key.removeprefix("input "): x[0] for key, x in named.items() if key.startswith("input ")}
        after = affine(layer, {**timed, **fixed}).apply(before[layer.index])
        assert_close("state", after, world.slots.temporal(layer.index)[LIVE], RTOL)


@every_model
def test_tapped_queries_are_what_meets_the_rows(name: str) -> None:
    """Products of queries and rows, scaled, are the model's own attention, also where latents are absorbed."""
    world, seen = World(name), {}
    world.slots.reset(LIVE, b"")
    world.runner.run(
        [span_at(world, range(20))],
        kv=KVMode.OVERWRITE,
        tap=lambda layer, key, x: seen.__setitem__((layer, key), x.clone()),
    )
    model = build_model(name)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        wanted = model(input_ids=torch.tensor([TOKENS]), use_cache=False, output_attentions=True).attentions
    wanted = [weights for weights in wanted if weights is not None]
    assert len(wanted) == len(world.kv.layout.layers)
    for layer, weights in zip(world.kv.layout.layers, wanted, strict=True):
        planes = [plane[world.rows] for plane in world.kv.planes(layer.index)]
        keys = torch.cat(planes, dim=-1) if layer.kind == "latent" else planes[0]
        queries = seen[layer.index, "queries"][0].unflatten(1, (layer.heads, -1))
        scores = torch.einsum("qhgd,khd->hgqk", queries, keys).flatten(0, 1) * seen[layer.index, "scale"]
        hidden = torch.ones(20, 20, dtype=torch.bool).triu(1)
        assert_close("attention", scores.masked_fill(hidden, float("-inf")).softmax(-1), weights[0], RTOL)
