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
    (chat(n=2), "n", "unsupported_parameter", "1"),
    (chat(tools=[{"type": "function"}]), "tools", "unsupported_parameter", "not supported"),
    (chat(response_format={"type": "json_object"}), "response_format", "unsupported_parameter", "not supported"),
    (chat(frequency_penalty=0.5), "frequency_penalty", "unsupported_parameter", "not supported"),
    (chat(logit_bias={"1": 5}), "logit_bias", "unsupported_parameter", "not supported"),
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
    (content("hi", role="tool"), "messages.0.role", None, "assistant"),
    (chat(messages=[*USER, {"role": "system", "content": "x"}]), "messages", None, "system comes first"),
    (chat(messages=[{**USER[0], "tool_calls": [{}]}]), "messages.0", None, "tool_calls"),
    (text(prompt=""), "prompt", "empty_prompt", "empty"),
    (text(prompt=[]), "prompt", "empty_prompt", "empty"),
    (text(prompt=["a", "b"]), "prompt", None, "several prompts"),
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
    (text(echo=True), "echo", "unsupported_parameter", "not supported"),
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
