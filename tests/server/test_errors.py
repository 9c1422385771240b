"""Requests that are refused: each with its status and one message in OpenAI's form, and the server serves on."""

import json
from typing import Any

import httpx
import pytest

from holdover.server.wire import MAX_BODY
from tests.server.live import NAME, Live

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
IMAGE = [{"type": "text", "text": "what is"}, {"type": "image_url", "image_url": {"url": "data:,"}}]

REPLY = {"role": "assistant", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "weather"}}
BAD_SCHEMA = {"type": "object", "properties": {"a": {"type": "nope"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": BAD_SCHEMA}}


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": fields}


def chat(**fields: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"model": NAME, "messages": USER, **fields}


def text(**fields: Any) -> tuple[str, dict[str, Any]]:
    return TEXT, {"model": NAME, "prompt": "hi", **fields}


def content(value: Any, role: str = "user") -> tuple[str, dict[str, Any]]:
    return chat(messages=[{"role": role, "content": value}])


# what is sent, the field at fault, the code if it is a particular one, and part of the message
BAD: list[tuple[tuple[str, dict[str, Any]], str | None, str | None, str]] = [
    (chat(max_tokens=0), "max_tokens", None, "greater than or equal to 1"),
    (chat(max_tokens=-3), "max_tokens", None, "greater than or equal to 1"),
    (chat(max_completion_tokens=0), "max_completion_tokens", None, "greater than or equal to 1"),
    (chat(max_tokens=1, max_completion_tokens=2), "max_completion_tokens", None, "differ"),
    (chat(max_tokens="5"), "max_tokens", None, "valid integer"),
    (chat(max_tokens=10**30), "max_tokens", "context_length_exceeded", "1024"),
    (chat(max_completion_tokens=2000), "max_completion_tokens", "context_length_exceeded", "1024"),
    (content("\n" * 2000), "messages", "context_length_exceeded", "1024"),
    (chat(temperature=-1), "temperature", None, "-1"),
    (chat(temperature=float("nan")), "temperature", None, "nan"),
    (chat(top_p=0), "top_p", None, "(0, 1]"),
    (chat(top_k=-2), "top_k", None, "-2"),
    (chat(min_p=2), "min_p", None, "[0, 1]"),
    (chat(seed=1.5), "seed", None, "integer"),
    (chat(stop=["a"] * 5), "stop", None, "at most 4"),
    (chat(stop=[""]), "stop", None, "empty"),
    (chat(stop=7), "stop", None, "string or a list"),
    (chat(top_logprobs=2), "top_logprobs", None, "logprobs"),
    (chat(logprobs=True, top_logprobs=21), "top_logprobs", None, "20"),
    (chat(stream_options={"include_usage": True}), "stream_options", None, "stream"),
    (chat(stream=True, stream_options={"usage": True}), "stream_options.usage", None, "Extra"),
    (chat(n=0), "n", None, "greater than or equal to 1"),
    (chat(n=129), "n", None, "less than or equal to 128"),
    (chat(frequency_penalty=2.5), "frequency_penalty", None, "[-2, 2]"),
    (chat(presence_penalty="1"), "presence_penalty", None, "number"),
    (chat(repetition_penalty=0), "repetition_penalty", None, "(0, 100]"),
    (chat(logit_bias=[]), "logit_bias", None, "object"),
    (chat(logit_bias={"a": 1}), "logit_bias", None, "token ids"),
    (chat(logit_bias={"1": "x"}), "logit_bias", None, "number"),
    (chat(logit_bias={"1": 101}), "logit_bias", None, "[-100, 100]"),
    (chat(logit_bias={"99999": 1}), "logit_bias", None, "vocabulary"),
    (chat(echo=True), "echo", "unknown_parameter", "echo"),
    (chat(functions=[{"name": "f"}]), "functions", "unsupported_parameter", "not supported"),
    (chat(reasoning_effort="high"), "reasoning_effort", "unsupported_parameter", "not supported"),
    (chat(chat_template_kwargs={"chat_template": "x"}), "chat_template_kwargs", None, "chat_template"),
    (chat(tools=[TOOL]), "tools", "unsupported_parameter", "knows no tools"),
    (chat(tools=[{"type": "function"}]), "tools.0.function", None, "required"),
    (chat(tools=[{"type": "web", "function": {"name": "f"}}]), "tools.0.type", None, "function"),
    (chat(tools=[function(name="a b")]), "tools.0.function.name", None, "'a b'"),
    (chat(tools=[function(name="f", parameters=[])]), "tools.0.function.parameters", None, "dictionary"),
    (chat(tools=[function(name="f", args={})]), "tools.0.function.args", None, "Extra"),
    (chat(tools=[TOOL, TOOL]), "tools", None, "two tools are called 'weather'"),
    (chat(tool_choice="required"), "tool_choice", None, "with tools"),
    (chat(tool_choice="any"), "tool_choice", None, "'any'"),
    (chat(tools=[TOOL], tool_choice=function(name="other")), "tool_choice", None, "'other'"),
    (chat(response_format="json"), "response_format", None, "'type'"),
    (chat(response_format={"type": "xml"}), "response_format", None, "'xml'"),
    (chat(response_format={"type": "json_schema"}), "response_format", None, "'schema'"),
    (chat(response_format={"type": "json_object", "schema": {}}), "response_format", None, "unknown field: schema"),
    (chat(response_format=SCHEMA, guided_regex="a"), "response_format.json_schema.schema", None, "give one"),
    (chat(response_format=SCHEMA), "response_format.json_schema.schema", None, "at properties.a: "),
    (chat(guided_regex="a("), "guided_regex", None, "unclosed group"),
    (chat(guided_regex="[^\\s\\S]"), "guided_regex", None, "nothing can match it"),
    (chat(chat_template_kwargs={"self": 1}), "messages", None, "refuses"),
    (text(guided_regex="a("), "guided_regex", None, "unclosed group"),
    (text(guided_grammar="start: b"), "guided_grammar", None, 'unknown name: "b"'),
    (chat(cache_sallt="a"), "cache_sallt", "unknown_parameter", "cache_sallt"),
    (chat(cache_salt=7), "cache_salt", None, "string"),
    (chat(use_cache="no"), "use_cache", None, "boolean"),
    (chat(messages=[]), "messages", None, "at least 1"),
    (chat(messages=None), "messages", None, "required"),
    (chat(messages="hi"), "messages", None, "list"),
    (content(None), "messages.0.content", None, "string or a list of text parts"),
    (content(7), "messages.0.content", None, "string or a list of text parts"),
    (content(IMAGE), "messages.0.content", None, "only text is supported, and a part is of type 'image_url'"),
    (content([{"type": "text"}]), "messages.0.content", None, "'text'"),
    (content("hi", role="tool"), "messages.0", None, "tool_call_id"),
    (content("hi", role="function"), "messages.0.role", None, "assistant"),
    (content(None, role="assistant"), "messages.0.content", None, "string or a list of text parts"),
    (chat(messages=[*USER, {"role": "assistant"}]), "messages.1.content", None, "string or a list of text parts"),
    (chat(messages=[{**USER[0], "tool_calls": [CALL]}]), "messages.0", None, "tool_calls is only allowed"),
    (chat(messages=[{**USER[0], "reasoning_content": "x"}]), "messages.0", None, "reasoning_content is only allowed"),
    (
        chat(messages=[{**REPLY, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{"}}]}]),
        "messages",
        None,
        "JSON object",
    ),
    (chat(messages=[{**REPLY, "refusal": "no"}]), "messages.0", None, "refusal is not supported"),
    (chat(messages=[{**REPLY, "mood": "x"}]), "messages.0", None, "unknown field: mood"),
    (chat(messages=[*USER, {"role": "system", "content": "x"}]), "messages", None, "system comes first"),
    (chat(messages=[{**REPLY, "tool_calls": [{}]}]), "messages.0.tool_calls.0.id", None, "required"),
    (text(prompt=""), "prompt", "empty_prompt", "empty"),
    (text(prompt=[]), "prompt", "empty_prompt", "empty"),
    (text(prompt=["a", ""]), "prompt", "empty_prompt", "prompt 1: "),
    (text(prompt=["a", [10**30]]), "prompt", None, "prompt 1: "),
    (text(prompt=["a"] * 43, n=3), "prompt", None, "43 prompts, 3 choices of each, are 129"),
    (text(prompt=[["a"]]), "prompt", None, "token ids"),
    (text(prompt=[1, "a"]), "prompt", None, "token ids"),
    (text(prompt=[True]), "prompt", None, "token ids"),
    (text(prompt=[5, 10**30]), "prompt", None, "vocabulary"),
    (text(prompt=[-1]), "prompt", None, "vocabulary"),
    (text(prompt={"a": 1}), "prompt", None, "token ids"),
    (text(prompt=[5] * 1009), "max_tokens", "context_length_exceeded", "1024"),
    (text(prompt=[5] * 1024), "prompt", "context_length_exceeded", "1024"),
    (text(logprobs=True), "logprobs", None, "integer"),
    (text(logprobs=-1), "logprobs", None, "0"),
    (text(prompt_logprobs=1, stream=True), "prompt_logprobs", None, "stream"),
    (text(echo=True, logprobs=1, stream=True), "echo", None, "streamed"),
    (text(echo=True, logprobs=1, prompt_logprobs=1), "prompt_logprobs", None, "echo"),
    (text(max_tokens=0), "max_tokens", None, "with echo, 0"),
    (text(max_tokens=-1), "max_tokens", None, "greater than or equal to 0"),
    (text(max_tokens=0, echo=True, n=2), "n", None, "of no use with max_tokens 0"),
    (text(max_tokens=0, echo=True, stream=True), "stream", None, "of no use with max_tokens 0"),
    (text(best_of=2), "best_of", "unsupported_parameter", "not supported"),
    (text(tools=[]), "tools", "unknown_parameter", "tools"),
    (text(suffix="x"), "suffix", "unsupported_parameter", "not supported"),
    (text(max_completion_tokens=3), "max_completion_tokens", "unknown_parameter", "unknown field"),
    ((CHAT, {"messages": USER}), "model", None, "required"),
]


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    ("asked", "param", "code", "part"), BAD, ids=[f"{i}-{param}" for i, (_, param, _, _) in enumerate(BAD)]
)
def test_refused(
    server: Live, asked: tuple[str, dict[str, Any]], param: str | None, code: str | None, part: str
) -> None:
    path, body = asked
    # Python's JSON writes NaN, which httpx would refuse to
    response = server.http.post(path, content=json.dumps(body))
    error = error_of(response)
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param), error
    assert part in error["message"]
    assert "\n" not in error["message"]
    if code is not None:
        assert error["code"] == code


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"hi"', b'{"model": "\xff"}', b'{"a":' * 5000, b'{"a":"\\ud800"}'])
def test_bodies_that_are_no_object(server: Live, body: bytes) -> None:
    response = server.http.post(CHAT, content=body)
    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_unknown_model(server: Live, path: str) -> None:
    response = server.http.post(path, json={"model": "gpt-4", "messages": USER, "prompt": "hi"} | _only(path))
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert NAME in error["message"]


def _only(path: str) -> dict[str, Any]:
    # null is as good as left out
    return {"prompt": None} if path == CHAT else {"messages": None}


def test_urls_and_methods(server: Live) -> None:
    for method, path, status in [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
    ]:
        response = server.http.request(method, path)
        assert (response.status_code, error_of(response)["type"]) == (status, "invalid_request_error"), path


def test_too_large_a_body(server: Live) -> None:
    for content in (b"x" * (MAX_BODY + 1), iter([b"x" * MAX_BODY, b"x" * MAX_BODY])):
        response = server.http.post(TEXT, content=content)
        assert (response.status_code, error_of(response)["code"]) == (413, "body_too_large")
    response = server.http.post(TEXT, content=b" " * MAX_BODY)
    assert response.status_code == 400


def test_still_serves(server: Live) -> None:
    for (path, body), _, _, _ in BAD:
        assert server.http.post(path, content=json.dumps(body)).status_code == 400
    assert server.chat("hello").choices[0].message.content


def test_request_ids(server: Live) -> None:
    for path in ("/health", "/v1/nothing"):
        assert server.http.get(path, headers={"x-request-id": "mine-7"}).headers["x-request-id"] == "mine-7"
        made = [server.http.get(path, headers={"x-request-id": bad}).headers["x-request-id"] for bad in ("", "a" * 200)]
        assert len(set(made)) == 2
        assert "" not in made
    # the same id twice at once is no clash: it names the request in the logs only
    bodies = [server.http.post(TEXT, json=text()[1], headers={"x-request-id": "same"}).json()["id"] for _ in range(2)]
    assert len(set(bodies)) == 2
