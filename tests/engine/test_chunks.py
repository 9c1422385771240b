"""Requests over chunks: what equals an ordinary prefill does, and nothing composed is ever taken for exact."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import pytest
import torch

from holdover.chunks import Chunk, ChunkOptions
from holdover.chunks.initialiser import SeededRandom
from holdover.chunks.selectors import Probe, SelectionContext
from holdover.engine.runner import Runner
from holdover.engine.sequence import Sequence as EngineSequence
from holdover.engine.step import KVMode, Span, StateMode
from holdover.errors import CapacityError, RequestError
from holdover.state import SlotPool
from holdover.store import KVPool
from tests.arch.table import ARCHITECTURES, VOCAB, build_model
from tests.engine.chunk_bench import QUERY, ChunkBench, chunks_of, tokens_of
from tests.engine.harness import RTOL, WINDOW, assert_greedy, distributions, host_of, prompt_of, reference
from tests.helpers import assert_close

NAMES = ["qwen3_5", "kimi_linear", "granite_hybrid_rope"]
every_model = pytest.mark.parametrize("name", NAMES)
LENGTHS = [1, 3, 16, 17]
# the first of three chunks
FIRST_OF_THREE = SeededRandom(next(seed for seed in range(99) if Random(seed).randrange(3) == 0))


@dataclass(frozen=True)
class Middle:
    """The fourth and fifth token of every chunk: behind its seam, and mostly before its end."""

    probe: ClassVar[Probe] = "none"

    def select(self, context: SelectionContext) -> tuple[int, ...]:
        return tuple(p for start, stop in context.assembly.chunks for p in range(start + 3, min(start + 5, stop)))


@dataclass(frozen=True)
class AllBehind:
    """Every token of every chunk but the first."""

    probe: ClassVar[Probe] = "none"

    def select(self, context: SelectionContext) -> tuple[int, ...]:
        return tuple(p for p in context.candidates if p >= context.assembly.chunks[0].stop)


@every_model
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    "choice", [("last", "stream"), ("random", "context"), ("exact", "context"), ("seams", "stream")]
)
def test_one_chunk_alone_is_its_prefill(name: str, length: int, choice: tuple[str, str]) -> None:
    bench, (chunk,) = ChunkBench(name), chunks_of(length)
    initialiser, window = choice
    output = bench.ask([chunk], selector="none", initialiser=initialiser, window=window)
    assert_greedy(name, output)
    seams = min(length, WINDOW - 1) if initialiser == "seams" else 0
    if seams == length:
        # nothing is left of it
        assert output.cache.lineage is None
    else:
        assert output.cache.lineage.startswith("composed(")
    assert (output.cache.reused, output.cache.recomputed, output.cache.new) == (length - seams, seams, len(QUERY))
    bench.assert_empty()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture(name: str) -> None:
    bench, (chunk,) = ChunkBench(name), chunks_of(17)
    assert_greedy(name, bench.ask([chunk], selector="none"))
    bench.assert_empty()


@every_model
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_all_is_a_prefill(name: str, order: tuple[int, ...]) -> None:
    bench, chunks = ChunkBench(name), chunks_of(17, 3, 16)
    output = bench.ask([chunks[i] for i in order], selector="all")
    assert_greedy(name, output)
    assert (output.cache.reused, output.cache.recomputed, output.cache.new) == (0, 36, len(QUERY))


@every_model
@pytest.mark.parametrize("length", LENGTHS)
def test_all_of_the_same_chunk_twice(name: str, length: int) -> None:
    bench, (chunk,) = ChunkBench(name), chunks_of(length)
    assert_greedy(name, bench.ask([chunk, chunk], selector="all"))


@every_model
@pytest.mark.parametrize(
    ("length", "window", "piece"),
    [
        (1, "stream", 5),
        (3, "context", 1),
        (3, "stream", 16),
        (16, "context", 16),
        (17, "stream", 1),
        (17, "context", 5),
    ],
)
def test_what_runs_behind_a_kept_beginning_is_exact(name: str, length: int, window: str, piece: int) -> None:
    """The first chunk's state and rows are true at position 0; all behind it, text too, is run again on top."""
    bench, (first, second) = ChunkBench(name, chunk=piece), chunks_of(17, length)
    parts = [first, prompt_of(2, seed=4), second, second, prompt_of(1, seed=5)]
    output = bench.ask(parts, selector=AllBehind(), initialiser=FIRST_OF_THREE, window=window)
    assert_greedy(name, output)
    assert output.cache.lineage.startswith("composed(")
    assert (output.cache.reused, output.cache.recomputed, output.cache.new) == (17, 2 * length, 3 + len(QUERY))
    bench.assert_empty()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_kept_rows_are_those_of_their_place(name: str) -> None:
    """Up to the first attention layer a chunk run alone is the same anywhere, but for its keys' rotation."""
    bench, parts = ChunkBench(name), chunks_of(17, 16)
    bench.want(parts, selector="none", tokens=2)
    rows = until_prefilled(bench).place.rows[17:33]
    layout, seen = host_of(name).layout, {}
    slots, kv = SlotPool(layout.state, 1), KVPool(layout.kv, 33)
    span = Span(1, parts[1].tokens, 17, kv.allocate(33), positions=range(17, 33))
    Runner(host_of(name), slots, kv).run(
        [span], kv=KVMode.DISCARD, state=StateMode.SCRATCH, tap=lambda layer, key, x: seen.__setitem__((layer, key), x)
    )
    first = layout.kv.layers[0].index
    for plane, key in zip(bench.cache.kv.planes(first), ("keys", "values"), strict=True):
        assert_close(key, plane[rows], seen[first, key][0].transpose(0, 1), RTOL)


@every_model
@pytest.mark.parametrize("piece", [1, 16])
def test_pieces_of_a_forward_change_nothing(name: str, piece: int) -> None:
    parts = [*chunks_of(9, 7), prompt_of(2, seed=4), *chunks_of(13)]
    outputs = []
    for most in (piece, 4):
        bench = ChunkBench(name, chunk=most)
        outputs.append(bench.ask(parts, tokens=1, selector="seam", ratio=0.4, initialiser="exact", window="context"))
        bench.assert_empty()
    assert_close("logprobs", *(distributions(output.logprobs) for output in outputs), RTOL)
    assert len({output.cache.lineage for output in outputs}) == 1


def true_state(name: str, tokens: tuple[int, ...]) -> SlotPool:
    """What an ordinary prefill leaves, in slot 1."""
    layout = host_of(name).layout
    slots, kv = SlotPool(layout.state, 1), KVPool(layout.kv, len(tokens))
    slots.reset(1, b"")
    Runner(host_of(name), slots, kv).run([Span(1, tokens, 0, kv.allocate(len(tokens)))])
    return slots


def until_prefilled(bench: ChunkBench) -> EngineSequence:
    """Step until the only request has one token left to compute."""
    while not bench.running() or bench.running()[0].remaining > 1:
        bench.step()
    (sequence,) = bench.running()
    return sequence


@every_model
@pytest.mark.parametrize("lengths", [(1,), (3, 1, 2), (16, 17, 4), (17, 17)])
@pytest.mark.parametrize("with_text", [False, True])
def test_seams_run_again_give_the_true_state_of_the_first_layer(name: str, lengths, with_text: bool) -> None:
    bench, parts = ChunkBench(name), chunks_of(*lengths)
    if with_text:
        parts = [prompt_of(2, seed=4), *parts[:1], prompt_of(1, seed=5), *parts[1:], prompt_of(4, seed=6)]
    whole = tokens_of(parts, QUERY)
    bench.want(parts, selector="none", initialiser="seams", tokens=2)
    sequence = until_prefilled(bench)
    assert sequence.computed == len(whole)
    pool, slot, true = bench.cache.tiers.native.pool, sequence.place.lease.slot, true_state(name, whole)
    assert_close("state", pool.temporal(0)[slot], true.temporal(0)[1], 1e-5)
    assert_close("window", pool.conv(0)[slot], true.conv(0)[1], 1e-5)


@every_model
@pytest.mark.parametrize(
    ("initialiser", "window"), [("last", "stream"), ("zero", "stream"), ("zero", "context"), ("seams", "stream")]
)
@pytest.mark.parametrize("lengths", [(9, 7), (7, 1), (9,)])
def test_the_query_sees_the_end_of_the_context(name: str, initialiser: str, window: str, lengths) -> None:
    """Whatever was run last: its first token's window at the first layer is that of a prefill."""
    bench, parts = ChunkBench(name), [prompt_of(2, seed=4), *chunks_of(*lengths)]
    bench.want(parts, (1,), selector=Middle(), initialiser=initialiser, window=window, tokens=2)
    sequence = until_prefilled(bench)
    assert sequence.computed == len(tokens_of(parts)) + 1
    got = bench.cache.tiers.native.pool.conv(0)[sequence.place.lease.slot]
    assert_close("window", got, true_state(name, tokens_of(parts, (1,))).conv(0)[1], 1e-5)


@every_model
def test_without_seams_the_first_layer_is_off(name: str) -> None:
    bench, parts = ChunkBench(name), chunks_of(16, 17)
    bench.want(parts, selector="none", initialiser="exact", tokens=2)
    state = bench.cache.tiers.native.pool.temporal(0)[until_prefilled(bench).place.lease.slot]
    true = true_state(name, tokens_of(parts, QUERY)).temporal(0)[1]
    assert float((state - true).norm() / true.norm()) > 1e-3


@every_model
def test_what_is_composed_is_no_hit_of_an_exact_request(name: str) -> None:
    bench, parts = ChunkBench(name), chunks_of(17, 16)
    composed = bench.ask(parts, selector="none")
    whole = composed.prompt_token_ids + composed.token_ids
    assert whole[: -len(composed.token_ids)] == tokens_of(parts, QUERY)
    ordinary = bench.serve((*whole, 1))
    assert (ordinary.cache.kv_depth, ordinary.cache.state_depth) == (0, 0)
    assert_greedy(name, ordinary)
    # nor is a chunk a prefix, or what is exact a hit of the composed
    alone = bench.serve((*parts[0].tokens, 1))
    assert alone.cache.kv_depth == len(parts[0].tokens), "of the ordinary request"
    assert_greedy(name, alone)
    other = bench.ask(parts[::-1], selector="none", query=(*QUERY, 1))
    assert other.cache.reused == 33
    bench.assert_empty()


def test_they_are_not_the_same() -> None:
    """Or the test above would say nothing."""
    bench, parts = ChunkBench("qwen3_5"), chunks_of(17, 16)
    composed = bench.ask(parts, selector="none", tokens=1)
    true = reference("qwen3_5", tokens_of(parts, QUERY))[-1:]
    got = distributions(composed.logprobs)
    assert float((got - true).norm() / true.norm()) > 1e-2


@every_model
@pytest.mark.parametrize("selector", ["none", "epic", "cacheblend"])
def test_the_next_turn_resumes_under_its_salt(name: str, selector: str) -> None:
    bench, parts = ChunkBench(name), [*chunks_of(17, 16), prompt_of(3, seed=4)]
    first = bench.ask(parts, selector=selector)
    followed = (*QUERY, *first.token_ids, *prompt_of(3, seed=7))
    second = bench.ask(parts, followed, selector=selector)
    assert second.cache.lineage == first.cache.lineage
    assert second.cache.state_depth == len(first.prompt_token_ids) + len(first.token_ids) - 1
    assert (second.cache.reused, second.cache.recomputed) == (0, 0)
    # as if the whole had been composed at once
    fresh = ChunkBench(name).ask(parts, followed, selector=selector)
    assert_close("logprobs", distributions(second.logprobs), distributions(fresh.logprobs), RTOL)
    # another tenant's is another
    elsewhere = bench.ask(parts, followed, selector=selector, salt="b")
    assert elsewhere.cache.state_depth == 0
    bench.assert_empty()


@every_model
def test_another_query_resumes_behind_the_context(name: str) -> None:
    bench, parts = ChunkBench(name), [*chunks_of(17, 16), prompt_of(3, seed=4)]
    bench.ask(parts, checkpoint_at=(36,))
    other = bench.ask(parts, prompt_of(4, seed=50))
    assert other.cache.state_depth == 36
    fresh = ChunkBench(name).ask(parts, prompt_of(4, seed=50))
    assert fresh.cache.state_depth == 0
    assert_close("logprobs", distributions(other.logprobs), distributions(fresh.logprobs), RTOL)
    bench.assert_empty()


@every_model
@pytest.mark.parametrize("selector", ["cacheblend", "epic", "prophetkv", "seam"])
@pytest.mark.parametrize("initialiser", ["last", "exact", "seams"])
def test_every_selector(name: str, selector: str, initialiser: str) -> None:
    bench = ChunkBench(name)
    parts = [prompt_of(2, seed=3), *chunks_of(17, 16), prompt_of(3, seed=4), *chunks_of(10)]
    output = bench.ask(parts, selector=selector, initialiser=initialiser, ratio=0.3)
    assert output.error is None
    assert output.cache.reused + output.cache.recomputed == 43
    assert output.cache.new == 5 + len(QUERY)
    if initialiser == "seams":
        assert output.cache.recomputed >= max(9, round(0.3 * 43))
    else:
        assert output.cache.recomputed == round(0.3 * 43)
    bench.assert_empty()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_cacheblend_leaves_what_is_true_alone(name: str) -> None:
    bench, parts = ChunkBench(name), chunks_of(17, 16)
    bench.want(parts, selector="cacheblend", ratio=16 / 33, tokens=2)
    selected = until_prefilled(bench).chosen.selected
    # at position 0 values are those of a prefill; behind it they are not
    assert selected == tuple(range(17, 33))


@every_model
def test_prophetkv_reads_the_models_own_attention(name: str) -> None:
    """One chunk at position 0 is the model's own context, so that its attention says what is chosen."""
    bench, (chunk,) = ChunkBench(name), chunks_of(17)
    bench.want([chunk], selector="prophetkv", ratio=0.4, tokens=2)
    selected = until_prefilled(bench).chosen.selected
    model = build_model(name)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        tokens = torch.tensor([tokens_of([chunk], QUERY)])
        seen = [w for w in model(input_ids=tokens, use_cache=False, output_attentions=True).attentions if w is not None]
    votes = torch.stack([w[0, :, 17:, :17] / w[0, :, 17:, :17].sum(-1, keepdim=True) for w in seen]).mean((0, 1, 2))
    assert selected == tuple(sorted(votes.topk(round(0.4 * 17)).indices.tolist()))


def test_a_chunk_is_built_once_whoever_wants_it() -> None:
    bench, (chunk, other) = ChunkBench("qwen3_5", chunk=4), chunks_of(17, 9)
    job = bench.core.chunks.builds.want(bench.prepare.namespace(""), chunk.tokens)
    bench.want([chunk, other], selector="none")
    bench.want([other, chunk, chunk], selector="none")
    bench.run()
    assert job.is_done
    assert job.error is None
    assert bench.cache.counters["chunks_built"] == 2
    assert all(output.error is None for output in bench.outputs.values())
    for parts, output in zip(([chunk, other], [other, chunk, chunk]), bench.outputs.values(), strict=True):
        alone = ChunkBench("qwen3_5").ask(parts, selector="none")
        assert_close("logprobs", distributions(output.logprobs), distributions(alone.logprobs), RTOL)
    bench.assert_empty()


def test_others_decode_while_chunks_are_built() -> None:
    bench, (chunk,) = ChunkBench("qwen3_5", chunk=4), chunks_of(20)
    first = bench.add(prompt_of(3), tokens=12)
    bench.step()
    bench.want([chunk])
    while bench.core.num_waiting:
        before = len(bench.running()[0].tokens)
        bench.step()
        assert len(bench.running()[0].tokens) == before + 1
    assert_greedy("qwen3_5", bench.run()[first])
    bench.assert_empty()


@pytest.mark.parametrize("use_cache", [True, False])
def test_preempted_and_composed_again(use_cache: bool) -> None:
    parts = chunks_of(9, 7)
    asked = {seed: (parts, prompt_of(5, seed=seed), 12) for seed in range(3)}
    wanted = {seed: ChunkBench("qwen3_5").ask(*one, use_cache=use_cache) for seed, one in asked.items()}
    # those that share the context's rows need fewer
    bench = ChunkBench("qwen3_5", rows=48 if use_cache else 62, slots=6, chunk_rows=20)
    ids = {bench.want(*one, use_cache=use_cache): seed for seed, one in asked.items()}
    bench.run(limit=400)
    assert bench.core.stats.preemptions
    for request_id, seed in ids.items():
        output = bench.outputs[request_id]
        assert output.error is None, output.error
        assert_close("logprobs", distributions(output.logprobs), distributions(wanted[seed].logprobs), RTOL)
    bench.assert_empty()


def test_chunks_make_room_for_prompts() -> None:
    bench, (chunk,) = ChunkBench("qwen3_5", rows=40), chunks_of(20)
    bench.build(chunk)
    output = bench.serve(prompt_of(30), tokens=4)
    assert_greedy("qwen3_5", output)
    assert bench.cache.counters["chunks_evicted"] == 1
    bench.assert_empty()


def test_a_request_that_waits_gives_way_to_those_that_run() -> None:
    """What it holds is taken from it, and it begins again."""
    bench, parts = ChunkBench("qwen3_5", rows=60, chunk=4), chunks_of(14, 13)
    first = bench.add(prompt_of(20), tokens=30)
    bench.step()
    waiting = bench.want(parts, tokens=2)
    bench.run(limit=400)
    assert_greedy("qwen3_5", bench.outputs[first])
    assert bench.core.stats.preemptions == 0
    assert bench.outputs[waiting].error is None
    bench.assert_empty()


def test_a_build_gives_way_to_a_request() -> None:
    """With one slot in all, a chunk that nobody waits for is begun again later."""
    bench, (chunk,) = ChunkBench("qwen3_5", slots=1, chunk=4), chunks_of(20)
    job = bench.core.chunks.builds.want(bench.prepare.namespace(""), chunk.tokens)
    bench.step()
    assert bench.core.chunks.builds.is_active
    assert_greedy("qwen3_5", bench.serve(prompt_of(5)))
    assert job.is_done
    assert job.error is None
    bench.assert_empty()


@pytest.mark.parametrize(("rows", "slots", "chunk_rows"), [(40, 8, 30), (200, 1, 100), (200, 8, 20)])
def test_what_can_never_be_had_is_said(rows: int, slots: int, chunk_rows: int) -> None:
    bench = ChunkBench("qwen3_5", rows=rows, slots=slots, chunk_rows=chunk_rows)
    output = bench.ask(chunks_of(14, 13))
    assert isinstance(output.error, CapacityError)
    assert_greedy("qwen3_5", bench.serve(prompt_of(12)))
    bench.assert_empty()


def test_aborted_while_its_chunks_are_built() -> None:
    bench, parts = ChunkBench("qwen3_5", chunk=4), chunks_of(9, 20)
    waiting = bench.want(parts)
    while not bench.core.chunks._holds:
        bench.step()
    bench.abort(waiting)
    assert bench.outputs[waiting].finish_reason == "abort"
    bench.run()
    bench.assert_empty()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"query": ()}, "the query is empty"),
        ({"parts": [Chunk(())]}, "a chunk is empty"),
        ({"parts": [(1, 2)]}, "the context has no chunk"),
        ({"parts": [Chunk((VOCAB,))]}, "prompt holds token 128"),
        ({"selector": "best"}, "selector must be one of"),
        ({"initialiser": "first"}, "initialiser must be one of"),
        ({"window": "none"}, "window must be one of"),
        ({"ratio": 1.5}, "ratio must be between 0 and 1"),
        ({"initialiser": "seams", "window": "context"}, "the window must be stream"),
        ({"exact": True}, "a composed state is not exact"),
        ({"params": {"prompt_logprobs": 1}}, "have no logprobs"),
        ({"query": prompt_of(600)}, "context"),
    ],
)
def test_refused_before_anything_starts(request_: dict, message: str) -> None:
    bench = ChunkBench("small-qwen3_5")
    with pytest.raises(RequestError, match=message):
        bench.want(**{"parts": chunks_of(4), **request_})
    assert not bench.core.has_work


@pytest.mark.parametrize(("initialiser", "kept"), [("exact", "transitions"), ("seams", "bodies")])
def test_chunks_that_are_kept_without_what_an_initialiser_takes(initialiser: str, kept: str) -> None:
    bench = ChunkBench("small-qwen3_5", extras=ChunkOptions())
    with pytest.raises(RequestError, match=f"initialiser {initialiser} needs chunks that are kept with {kept}"):
        bench.want(chunks_of(20, 19), initialiser=initialiser)
    assert not bench.core.has_work


def test_chunks_that_were_kept_without_what_a_window_takes() -> None:
    bench = ChunkBench("small-qwen3_5", extras=ChunkOptions())
    output = bench.ask(chunks_of(20, 19), ratio=0.3, selector="seam", window="context")
    assert isinstance(output.error, RequestError)
    assert "conv inputs were not kept" in str(output.error)
    bench.assert_empty()


@pytest.mark.parametrize("name", ["qwen3_5", "kimi_linear"])
def test_with_deferred_decode(name: str) -> None:
    parts = [*chunks_of(9, 7), prompt_of(2, seed=4)]
    plain = ChunkBench(name, decode="dense").ask(parts, tokens=12, initialiser="exact")
    bench = ChunkBench(name, decode="deferred", merge_interval=3, chunk=1)
    logged = bench.ask(parts, tokens=12, initialiser="exact")
    assert_close("logprobs", distributions(logged.logprobs), distributions(plain.logprobs), RTOL)
    again = bench.ask(parts, (*QUERY, *logged.token_ids, 3))
    assert again.error is None
    bench.assert_empty()


def test_packed_checkpoints() -> None:
    """Chunks' states and composed ones lie among the others, packed without loss."""
    parts = chunks_of(9, 7)
    wanted = ChunkBench("qwen3_5").ask(parts, initialiser="exact")
    sizes = {"state_budget": 1 << 24, "native_slots": 6, "packed_slots": 8}
    bench = ChunkBench("qwen3_5", element="int8", **sizes)
    output = bench.ask(parts, initialiser="exact")
    assert {entry.checkpoint.tier for entry in bench.store.entries.values()} == {"compressed"}
    assert output.cache.lineage == wanted.cache.lineage
    again = bench.ask(parts, (*QUERY, *output.token_ids, 3), initialiser="exact")
    assert again.cache.state_depth == len(output.prompt_token_ids) + len(output.token_ids) - 1
    bench.assert_empty()
