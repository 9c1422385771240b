import json
from typing import Any

import pytest

from tests.server.live import NAME, Live

PROMPTS = ["the cat", "hello", "user\nsystem", "ß 🦉 €"]


def events(server: Live, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The bodies of a stream's events, which must be well formed and end with [DONE]."""
    body = {"model": NAME, "max_tokens": 12, "temperature": 0, "stream": True, **body}
    response = server.http.post(path, json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    parts = response.text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    assert all(part.startswith("data: ") for part in parts[:-1])
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


@pytest.mark.parametrize("prompt", PROMPTS)
def test_streamed_is_whole(server: Live, prompt: str) -> None:
    whole = server.complete(prompt).choices[0].text
    streamed = [chunk.choices[0].text for chunk in server.complete(prompt, stream=True)]
    assert "".join(streamed) == whole
    message = server.chat(prompt).choices[0].message.content
    deltas = [chunk.choices[0].delta.content or "" for chunk in server.chat(prompt, stream=True)]
    assert "".join(deltas) == message


def test_chat_chunks(server: Live) -> None:
    chunks = events(server, "/v1/chat/completions", chat("hello"))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    assert "usage" not in chunks[-1]
    assert chunks[-1]["holdover"]["cache"]["prompt_tokens"] > 0
    assert all("holdover" not in chunk for chunk in chunks[:-1])


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", chat("hello")), ("/v1/completions", {"prompt": "hello"})]
)
def test_usage_comes_last_and_alone(server: Live, path: str, body: dict[str, Any]) -> None:
    chunks = events(server, path, body | {"stream_options": {"include_usage": True}})
    last = chunks[-1]
    assert last["choices"] == []
    assert 0 < last["usage"]["completion_tokens"] <= 12
    assert last["holdover"] == chunks[-2]["holdover"]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_logprobs_of_every_token(server: Live) -> None:
    whole = server.chat("hello", logprobs=True, top_logprobs=1).choices[0].logprobs.content
    chunks = server.chat("hello", logprobs=True, top_logprobs=1, stream=True)
    streamed = [entry for c in chunks if c.choices[0].logprobs for entry in c.choices[0].logprobs.content]
    assert [entry.token for entry in streamed] == [entry.token for entry in whole]
    assert [entry.logprob for entry in streamed] == pytest.approx([entry.logprob for entry in whole], abs=1e-4)


def test_completion_offsets_go_on(server: Live) -> None:
    whole = server.complete("hello", logprobs=0).choices[0].logprobs
    chunks = list(server.complete("hello", logprobs=0, stream=True))
    offsets = [offset for c in chunks if c.choices[0].logprobs for offset in c.choices[0].logprobs.text_offset]
    assert offsets == whole.text_offset
