from typing import Any

import pytest

from tests.server.live import NAME, Live


def test_shape(server: Live) -> None:
    answer = server.chat("hello")
    assert (answer.object, answer.model, answer.id[:9]) == ("chat.completion", NAME, "chatcmpl-")
    choice = answer.choices[0]
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert answer.usage.completion_tokens == 12


def test_parts_are_joined_and_developer_is_system(server: Live) -> None:
    def ask(role: str, content: Any) -> str:
        messages = [{"role": role, "content": content}, {"role": "user", "content": "hello"}]
        text: str = server.chat(messages).choices[0].message.content
        return text

    parts = [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]
    assert ask("system", "be brief") == ask("system", parts) == ask("developer", "be brief") != ask("system", "sit")


def test_max_completion_tokens(server: Live) -> None:
    answer = server.chat("hello", max_tokens=None, max_completion_tokens=3)
    assert answer.usage.completion_tokens == 3


def test_without_a_limit_the_context_is_the_limit(server: Live) -> None:
    body = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "temperature": 0, "ignore_eos": True}
    # all but a few tokens of the context in the prompt, so that the rest is soon full
    body["messages"] = [{"role": "user", "content": "\n" * 1000}]
    usage = server.http.post("/v1/chat/completions", json=body).json()["usage"]
    assert usage["total_tokens"] == server.engine.engine.prepare.max_context


def test_logprobs(server: Live) -> None:
    content = server.chat("hello", logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(content) == 12
    for entry in content:
        assert [len(entry.top_logprobs), entry.top_logprobs[0].token] == [2, entry.token]
        assert entry.logprob == entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
        assert bytes(entry.bytes).decode(errors="replace") == entry.token


def test_messages_may_come_back_as_clients_dump_them(server: Live) -> None:
    reply = server.chat("hello").choices[0].message
    messages = [{"role": "user", "content": "hello"}, reply.model_dump(), {"role": "user", "content": "more"}]
    assert server.chat(messages).choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_sampling_follows_the_model_s_defaults(server: Live, stream: bool) -> None:
    # the model's files ask for no sampling, so that leaving temperature out is greedy
    body = {"model": NAME, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    greedy = server.chat("hello", max_tokens=8).choices[0].message.content
    assert server.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"] == greedy
