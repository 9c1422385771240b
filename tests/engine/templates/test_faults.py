"""Faults that systems of this kind have had (classes 1 to 13), in conversations with thoughts and calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from holdover.engine.chat import render_chat
from holdover.engine.request import Output
from holdover.prefix.policies import DEFAULT_POLICY, AnyOf, MessageBoundaries, PromptTail
from tests.engine.harness import RTOL, Bench, distributions
from tests.engine.templates.build import FORMS, RAIN, VOCAB, Form, conversation, host_of, prompts, tokenizer_of
from tests.helpers import assert_close

# one for each model; what templates of one model do otherwise is about boundaries, and is tested there
with_tools = pytest.mark.parametrize(
    "form", {form.row: pytest.param(form, id=name) for name, form in FORMS.items() if form.knows_tools}.values()
)
TOKENS = 8

# token ids of a prompt, and the boundaries in it
Turn = tuple[tuple[int, ...], tuple[int, ...]]


def turns_of(form: Form, folder: Path, *, system: bool) -> list[Turn]:
    """A conversation as its client sends it, turn by turn."""
    tokenizer, options = tokenizer_of(form, folder), {**form.options, "tools": [RAIN]}
    messages = conversation(form, system=system, tools=True)
    rendered = [render_chat(tokenizer, turn, **options) for turn in prompts(messages)]
    return [(tuple(ids), tuple(boundaries)) for ids, boundaries in rendered]


def bench_of(form: Form, **options: Any) -> Bench:
    return Bench(form.row, host=host_of(form.row), **options)


def add(bench: Bench, turn: Turn, salt: str = "") -> str:
    return bench.add(turn[0], TOKENS, request={"boundaries": turn[1], "salt": salt}, logprobs=VOCAB)


def assert_uncached(form: Form, outputs: list[Output]) -> None:
    """Fail unless every output is what an engine computes from the first token on."""
    plain = bench_of(form, rows=1000, chunk=512)
    for output in outputs:
        wanted = plain.serve(output.prompt_token_ids, TOKENS, request={"use_cache": False}, logprobs=VOCAB)
        assert output.error is None, output.error
        assert output.token_ids == wanted.token_ids
        assert_close("logprobs", distributions(output.logprobs), distributions(wanted.logprobs), RTOL)


@with_tools
def test_conversations_at_once_in_too_little_memory(form: Form, tmp_path: Path) -> None:
    """Preempted, evicted and aborted, on poisoned slots and rows (classes 6 and 9 to 12)."""
    # a result of a call, and a question after it
    pair = [turns_of(form, tmp_path, system=system)[1:4:2] for system in (False, True)]
    longest = max(len(ids) for turns in pair for ids, _ in turns)
    bench = bench_of(form, slots=5, rows=longest + 2 * TOKENS, chunk=128, policy=DEFAULT_POLICY)
    asked = []
    for turns in zip(*pair, strict=True):
        # tenants of their own, so that neither has rows of the other's
        first, gone, second = (add(bench, turns[i], salt=f"{i}") for i in (0, 1, 1))
        asked += [first, second]
        # in the midst of its prefill
        while not any(one.request.id == gone for one in bench.running()):
            bench.step()
        bench.abort(gone)
        bench.run()
    assert bench.core.stats.preemptions
    assert bench.cache.counters["states_evicted"]
    assert_uncached(form, [bench.outputs[one] for one in asked])
    bench.assert_empty()


@with_tools
def test_a_boundary_is_resumed_by_however_many_tokens_follow(form: Form, tmp_path: Path) -> None:
    """At the depth where it lies, in no other unit (1 to 3, 5, 7, 13), from bytes that stay as they are (4, 8)."""
    turn, following = turns_of(form, tmp_path, system=False)[:2]
    depth = turn[1][-1]
    bench = bench_of(form, chunk=46, policy=AnyOf((MessageBoundaries(), PromptTail())), rows=1000)
    add(bench, turn)
    bench.run()
    pool = bench.cache.tiers.native.pool
    kept = {one.slot: [x.clone() for x in pool.tensors_of(one.slot)] for one in bench.cache.tiers.order}
    depths = {pool.depth(slot) for slot in kept}
    assert depth in depths
    assert all(x.isfinite().all() for tensors in kept.values() for x in tensors)
    wanted = {add(bench, turn): max(depths - {len(turn[0])})}
    wanted |= {add(bench, (following[0][: depth + count], ())): depth for count in (1, 2, 3, 40, 2, 1)}
    bench.run()
    assert {one: bench.outputs[one].cache.state_depth for one in wanted} == wanted
    for slot, tensors in kept.items():
        assert all(torch.equal(x, y) for x, y in zip(tensors, pool.tensors_of(slot), strict=True))
    assert_uncached(form, [bench.outputs[one] for one in list(wanted)[:5]])
    bench.assert_empty()
