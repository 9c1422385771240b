"""Tools and thoughts over HTTP with the official client, for every format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.server.live import Live
from tests.server.templates import FORMATS, saying, serving
from tests.server.tools.test_parsers import granite, hermes, kimi, xml

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["the cat", "the dog"]},
        "days": {"$ref": "#/$defs/days"},
        "strict": {"type": "boolean"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 14}},
}
WEATHER: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "time", "description": "What time it is."}}
TIME["function"]["parameters"] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [WEATHER, TIME]
WRITTEN = {"hermes": hermes, "hermes-special": hermes, "granite": granite, "kimi": kimi, "xml": xml}
QUESTION = [{"role": "user", "content": "how is the cat?"}]
CALL = ("weather", {"city": "the cat", "days": 3})


@pytest.fixture(scope="module", params=FORMATS)
def shared_tools(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Live]]:
    with serving(tmp_path_factory.mktemp("tools"), request.param) as live:
        yield request.param, live


@pytest.fixture
def tooled(shared_tools: tuple[str, Live]) -> Iterator[tuple[str, Live]]:
    yield shared_tools
    shared_tools[1].check()


def ask(server: Live, *, stream: bool = False, **options: Any) -> Any:
    """The choice of an answer; that of a stream is put together as clients do."""
    options = {"max_tokens": 300, "tools": TOOLS, **options}
    messages = options.pop("messages", QUESTION)
    if not stream:
        answer = server.chat(messages, **options)
        return answer.choices[0]
    state: Any = ChatCompletionStreamState()
    for chunk in server.chat(messages, stream=True, **options):
        state.handle_chunk(chunk)
    return state.current_completion_snapshot.choices[0]


def called(choice: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or []]


def assert_valid(calls: list[tuple[str, dict[str, Any]]]) -> None:
    for name, arguments in calls:
        if name == "time":
            assert arguments == {}
            continue
        assert name == "weather"
        assert {"city", "days"} <= arguments.keys() <= {"city", "days", "strict"}
        assert arguments["city"] in ("the cat", "the dog")
        assert 1 <= arguments["days"] <= 14
        assert isinstance(arguments.get("strict", True), bool)


streams = pytest.mark.parametrize("stream", [False, True])


@streams
def test_required(tooled: tuple[str, Live], stream: bool) -> None:
    choice = ask(tooled[1], stream=stream, tool_choice="required", parallel_tool_calls=False)
    assert choice.finish_reason == "tool_calls"
    assert not choice.message.content
    assert len(called(choice)) == 1
    assert_valid(called(choice))


@streams
def test_named(tooled: tuple[str, Live], stream: bool) -> None:
    for name in ("weather", "time"):
        choice = ask(tooled[1], stream=stream, tool_choice={"type": "function", "function": {"name": name}})
        assert [called for called, _ in called(choice)] == [name]
        assert_valid(called(choice))


def test_required_and_several(tooled: tuple[str, Live]) -> None:
    for seed in range(2):
        choice = ask(tooled[1], tool_choice="required", temperature=1.5, seed=seed)
        if choice.finish_reason == "tool_calls":
            assert called(choice)
            assert_valid(called(choice))
        else:
            # it went on and on; each call that was finished is valid all the same
            assert choice.finish_reason == "length"
            assert_valid([(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls[:-1]])


@streams
def test_auto_reads_what_the_model_writes(tooled: tuple[str, Live], stream: bool) -> None:
    name, server = tooled
    with saying(server, f"I look.\n{WRITTEN[name]([CALL, CALL])}"):
        choice = ask(server, stream=stream)
        only = ask(server, stream=stream, parallel_tool_calls=False)
    assert called(choice) == [CALL, CALL]
    assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert called(only) == [CALL]
    with saying(server, "Fine, thank you.\n"):
        choice = ask(server, stream=stream)
    assert (choice.message.content, choice.finish_reason) == ("Fine, thank you.\n", "stop")
    assert not choice.message.tool_calls


@streams
def test_cut_off_calls_are_not_finished(tooled: tuple[str, Live], stream: bool) -> None:
    name, server = tooled
    text = WRITTEN[name]([CALL])
    count = len(server.engine.engine.loaded.tokenizer.encode(text[: text.index("the cat") + 7]))
    body = {"model": "tiny-gdn", "messages": QUESTION, "tools": TOOLS, "max_tokens": count, "stream": stream}
    with saying(server, text):
        response = server.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    assert '"finish_reason":"length"' in response.text
    assert '"name":"weather"' in response.text


@streams
def test_thoughts(tooled: tuple[str, Live], stream: bool) -> None:
    name, server = tooled
    text = f"a cat?\n</think>\n\nYes.\n{WRITTEN[name]([CALL])}"
    with saying(server, text):
        choice = ask(server, stream=stream, extra_body={"chat_template_kwargs": {"thinking": True}})
    assert choice.message.reasoning_content == "a cat?"
    assert (choice.message.content, called(choice)) == ("Yes.", [CALL])
    with saying(server, "<think>\nhm\n</think>\n\nYes."):
        choice = ask(server, stream=stream, tools=[{**TIME}])
    assert (choice.message.reasoning_content, choice.message.content) == ("hm", "Yes.")


def test_a_thought_comes_before_a_required_call(tooled: tuple[str, Live]) -> None:
    server = tooled[1]
    tokenizer = server.engine.engine.loaded.tokenizer
    # the model is random: only a bias makes it end its thought
    bias = {str(token): 60 for token in tokenizer.encode("</think>")} | {str(tokenizer.only_token("h")): 61}
    choice = ask(
        server,
        tool_choice={"type": "function", "function": {"name": "time"}},
        extra_body={"chat_template_kwargs": {"thinking": True}},
        logit_bias=bias,
        frequency_penalty=2.0,
        max_tokens=400,
    )
    if choice.finish_reason == "tool_calls":
        assert called(choice) == [("time", {})]
    assert choice.message.reasoning_content
    assert not choice.message.content


@streams
def test_none_keeps_the_prompt_and_calls_nothing(tooled: tuple[str, Live], stream: bool) -> None:
    name, server = tooled
    prompts = [
        server.chat(QUESTION, tools=TOOLS, tool_choice=choice).usage.prompt_tokens for choice in ("auto", "none")
    ]
    is_told = prompts[0] == prompts[1]
    # marks that are one token can be kept away, others are not mentioned to the model
    assert is_told is bool(FORMATS[name].special)
    choice = ask(server, stream=stream, tool_choice="none", max_tokens=20)
    assert not choice.message.tool_calls
    assert choice.finish_reason in ("stop", "length")


def test_the_next_turn_finds_what_was_computed(tooled: tuple[str, Live]) -> None:
    name, server = tooled
    with saying(server, WRITTEN[name]([CALL])):
        first = server.chat(QUESTION, tools=TOOLS, max_tokens=300)
    reply = first.choices[0].message
    assert reply.tool_calls
    result = {"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": "hungry"}
    answer = server.chat([*QUESTION, reply.model_dump(), result], tools=TOOLS)
    assert answer.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 1
    rendered = server.engine.engine.loaded.tokenizer.verbatim.decode(
        server.engine.engine.loaded.tokenizer.render(
            [*QUESTION, {"role": "assistant", "content": "", "tool_calls": _as_sent(name, reply)}, result], tools=TOOLS
        )
    )
    assert WRITTEN[name]([CALL]).strip() in rendered
    assert answer.usage.prompt_tokens == len(server.engine.engine.loaded.tokenizer.encode(rendered))


def _as_sent(name: str, reply: Any) -> list[dict[str, Any]]:
    calls = [call.model_dump(include={"id", "type", "function"}) for call in reply.tool_calls]
    if name == "xml":
        for call in calls:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return calls


def test_arguments_that_are_no_json(tooled: tuple[str, Live]) -> None:
    name, server = tooled
    call = {"id": "x", "type": "function", "function": {"name": "weather", "arguments": '{"city": "the'}}
    messages = [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]}, QUESTION[0]]
    body = {"model": "tiny-gdn", "messages": messages, "tools": TOOLS, "max_tokens": 2}
    response = server.http.post("/v1/chat/completions", json=body)
    # a template that writes them as they came has no need to understand them
    assert response.status_code == (400 if name == "xml" else 200), response.text
    if name == "xml":
        assert "JSON object" in response.json()["error"]["message"]


def test_choices_that_call(tooled: tuple[str, Live]) -> None:
    answer = tooled[1].chat(QUESTION, tools=TOOLS, tool_choice="required", n=3, temperature=1, seed=1, max_tokens=300)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert choice.message.tool_calls


def test_bad_schemas_are_named(tooled: tuple[str, Live]) -> None:
    bad = {"type": "function", "function": {"name": "bad", "parameters": {"properties": {"x": {"type": "nope"}}}}}
    body = {"model": "tiny-gdn", "messages": QUESTION, "tools": [TIME, bad], "tool_choice": "required"}
    error = tooled[1].http.post("/v1/chat/completions", json=body).json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "tools.bad.parameters")
    assert "at properties.x: " in error["message"]


@streams
def test_logprobs_cover_every_token(tooled: tuple[str, Live], stream: bool) -> None:
    name, server = tooled
    text = f"I look.\n{WRITTEN[name]([CALL])}"
    count = len(server.engine.engine.loaded.tokenizer.encode(text)) + 1
    with saying(server, text):
        answer = server.chat(QUESTION, tools=TOOLS, max_tokens=300, logprobs=True, stream=stream)
        if stream:
            reported = [entry for c in answer if c.choices[0].logprobs for entry in c.choices[0].logprobs.content]
        else:
            reported = answer.choices[0].logprobs.content
    assert len(reported) == count
