"""Answers that match a schema, an expression or a grammar, with the official client."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.server.live import NAME, Live
from tests.server.templates import serving
from tests.server.test_tools import QUESTION, TOOLS, assert_valid, called


class Animal(BaseModel):
    name: Literal["cat", "dog"]
    legs: Literal[2, 4]
    tame: bool


SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "animal", "schema": Animal.model_json_schema(), "strict": True},
}
SAMPLED: list[dict[str, Any]] = [{}, {"temperature": 1.5, "seed": 1}, {"temperature": 1.5, "seed": 2, "top_p": 0.9}]
sampled = pytest.mark.parametrize("how", SAMPLED, ids=["greedy", "seed1", "seed2"])


def text_of(answer: Any, stream: bool) -> str:
    if stream:
        return "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    assert answer.choices[0].finish_reason == "stop"
    return str(answer.choices[0].message.content)


@sampled
@pytest.mark.parametrize("stream", [False, True])
def test_json_schema(server: Live, how: dict[str, Any], stream: bool) -> None:
    answer = server.chat("hello", max_tokens=200, response_format=SCHEMA, stream=stream, **how)
    text = text_of(answer, stream)
    Animal.model_validate_json(text)
    # as chat templates write JSON
    assert text == json.dumps(json.loads(text))


def test_the_client_s_own_types(server: Live) -> None:
    answer = server.openai.chat.completions.parse(
        model=NAME, messages=[{"role": "user", "content": "hello"}], response_format=Animal, max_tokens=200
    )
    assert isinstance(answer.choices[0].message.parsed, Animal)


def test_json_object_and_text(server: Live) -> None:
    # a random model closes no brace by itself
    close = {str(server.engine.engine.loaded.tokenizer.only_token("}")): 100}
    answer = server.chat("hello", max_tokens=50, response_format={"type": "json_object"}, logit_bias=close)
    assert isinstance(json.loads(answer.choices[0].message.content), dict)
    plain = server.chat("hello").choices[0].message.content
    assert server.chat("hello", response_format={"type": "text"}).choices[0].message.content == plain


@sampled
def test_regex(server: Live, how: dict[str, Any]) -> None:
    guided = {"guided_regex": "(cat|dog) [0-9]{2,4}!"}
    assert re.fullmatch(guided["guided_regex"], text_of(server.chat("hello", extra_body=guided, **how), False))
    choice = server.complete("hello", extra_body=guided, **how).choices[0]
    assert re.fullmatch(guided["guided_regex"], choice.text)


@sampled
def test_grammar(server: Live, how: dict[str, Any]) -> None:
    guided = {"guided_grammar": 'start: sum "."\nsum: NUMBER (("+" | "-") NUMBER){0,3}\nNUMBER: /[1-9][0-9]?/'}
    text = server.complete("hello", max_tokens=40, extra_body=guided, **how).choices[0].text
    assert re.fullmatch(r"[1-9][0-9]?([+-][1-9][0-9]?){0,3}\.", text)


def test_choices_and_penalties(server: Live) -> None:
    answer = server.chat(
        "hello", n=4, max_tokens=200, response_format=SCHEMA, temperature=1.5, seed=3, frequency_penalty=1.0
    )
    animals = [Animal.model_validate_json(choice.message.content) for choice in answer.choices]
    assert len(animals) == 4
    assert len({animal.model_dump_json() for animal in animals}) > 1


def test_neighbours_are_free(server: Live) -> None:
    plain = [server.complete(prompt).choices[0].text for prompt in ("the cat", "the dog")]
    body = {"model": NAME, "prompt": "the cat", "max_tokens": 60, "guided_regex": "[a-z]{50}", "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert [server.complete(prompt).choices[0].text for prompt in ("the cat", "the dog")] == plain
        text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines if line.startswith("data: {"))
    assert re.fullmatch("[a-z]+", text)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(tmp_path_factory.mktemp("thinker"), "hermes-special", decode="deferred", speculate="ngram") as live:
        yield live


def test_thoughts_are_free_and_answers_are_not(thinker: Live) -> None:
    end = thinker.engine.engine.loaded.tokenizer.only_token("</think>")
    answer = thinker.chat(
        "hello",
        max_tokens=200,
        response_format=SCHEMA,
        # ends the thought at once, and is forbidden everywhere else
        logit_bias={str(end): 100},
        extra_body={"chat_template_kwargs": {"thinking": True}},
    )
    Animal.model_validate_json(answer.choices[0].message.content)


@sampled
def test_with_tools_either_an_answer_or_calls(thinker: Live, how: dict[str, Any]) -> None:
    options: dict[str, Any] = {"tools": TOOLS, "response_format": SCHEMA, "parallel_tool_calls": False}
    choice = thinker.chat(QUESTION, max_tokens=300, **options, **how).choices[0]
    assert choice.finish_reason in ("stop", "tool_calls")
    if choice.message.tool_calls:
        assert_valid(called(choice))
    else:
        Animal.model_validate_json(choice.message.content)


@sampled
def test_with_drafts(thinker: Live, how: dict[str, Any]) -> None:
    """A text that repeats its prompt: prompt lookup has drafts for it, most of them forbidden."""
    ask = 'cat {"name": "cat", "legs": 4, "tame": true} {"name": "dog", "legs": 2, "tame": true} {"name": '
    for _ in range(2):
        answer = thinker.chat(ask, max_tokens=200, response_format=SCHEMA, **how)
        Animal.model_validate_json(answer.choices[0].message.content)
    assert thinker.on_engine(lambda core: core.speculator.stats.drafted)


def test_without_the_library(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "llguidance", None)
    body = {"model": NAME, "prompt": "hello", "guided_regex": "never asked [0-9] before"}
    response = server.http.post("/v1/completions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "guided_regex", "unsupported_parameter")
    assert 'pip install "holdover[structured]"' in error["message"]


def test_nothing_needs_the_library_until_it_is_used(model: Path) -> None:
    import subprocess
    import sys

    code = "import sys; import holdover.server.app, holdover.engine.constraints; assert 'llguidance' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
