"""Under every family's kind of chat template, turns resume where the template begins to write something else."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from holdover.engine.chat import render_chat
from holdover.engine.engine import Engine
from holdover.engine.request import Output
from holdover.engine.sampling import SamplingParams
from holdover.prefix.policies import MessageBoundaries
from tests.engine.templates.build import FORMS, RAIN, Form, build_engine, conversation, prompts

# tokens that a reply in progress begins with and that need not be written again: an opened thought
OPENED = 4
CASES = [
    pytest.param(form, system, tools, id=f"{name}{'-system' * system}{'-tools' * tools}")
    for name, form in FORMS.items()
    # a system prompt of the client's own, or the template's
    for system, tools in ([(False, False), (True, True), (False, True)] if form.knows_tools else [(False, False)])
]


def ask(engine: Engine, form: Form, messages: list[dict[str, Any]], tools: bool, **params: Any) -> tuple[Output, int]:
    """The reply, and the boundary in the prompt."""
    options = {**form.options, **({"tools": [RAIN]} if tools else {})}
    ids, boundaries = render_chat(engine.loaded.tokenizer, messages, **options)
    use_cache = params.pop("use_cache", True)
    (output,) = engine.generate([ids], SamplingParams(**params), boundaries=boundaries, use_cache=use_cache)
    return output, boundaries[-1]


def shared(first: Sequence[int], second: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


@pytest.mark.parametrize(("form", "system", "tools"), CASES)
def test_a_turn_resumes_at_the_boundary_of_an_earlier_one(
    form: Form, system: bool, tools: bool, tmp_path: Path
) -> None:
    turns = prompts(conversation(form, system=system, tools=tools))
    earlier: list[tuple[tuple[int, ...], int]] = []
    # of the last question, and of the last prompt
    question = last = None
    with build_engine(form, tmp_path, MessageBoundaries()) as engine:
        for turn in turns:
            output, boundary = ask(engine, form, turn, tools, max_tokens=1)
            prompt = output.prompt_token_ids
            # what is kept of an earlier turn is used exactly where this turn writes the same
            repeated = [depth for ids, depth in earlier if ids[:depth] == prompt[:depth]]
            assert output.cache.state_depth == max(repeated, default=0)
            # a question after calls may drop what was thought between them
            before = question if turn[-1]["role"] == "user" else last
            if before is not None:
                ids, depth = before
                assert depth <= shared(ids, prompt) <= depth + OPENED
                assert output.cache.state_depth >= depth
            earlier.append(last := (prompt, boundary))
            if turn[-1]["role"] == "user":
                question = last


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_what_is_written_otherwise_is_never_resumed(form: Form, tmp_path: Path) -> None:
    """A random model's replies are no text that a tokenizer would cut into the same tokens again."""
    tools = form.knows_tools
    turns = prompts(conversation(form, system=False, tools=tools))
    paths: list[tuple[int, ...]] = []
    said: dict[int, str] = {}
    with build_engine(form, tmp_path) as engine:
        for turn in turns:
            # what the model wrote, at the places of the replies
            messages = [{**m, "content": said.get(i, m["content"])} for i, m in enumerate(turn)]
            output, _ = ask(engine, form, messages, tools, max_tokens=4, logprobs=1)
            prompt = output.prompt_token_ids
            most = max((shared(path, prompt) for path in paths), default=0)
            assert (0 < output.cache.state_depth <= most) if paths else output.cache.state_depth == 0
            again, _ = ask(engine, form, messages, tools, max_tokens=4, logprobs=1, use_cache=False)
            assert again.token_ids == output.token_ids
            for ours, plain in zip(output.logprobs or (), again.logprobs or (), strict=True):
                assert ours.logprob == pytest.approx(plain.logprob, rel=1e-4, abs=1e-4)
            paths.append((*prompt, *output.token_ids))
            said[len(turn)] = output.text
