"""Every parameter that the API accepts, sent by the official client: a new one without a case fails here."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from openai.resources.chat.completions import Completions as Chats
from openai.resources.completions import Completions as Texts

from holdover.server.parsing import IGNORED, UNSUPPORTED
from holdover.server.schemas import ChatRequest, CompletionRequest
from tests.server.live import NAME, Live

PROMPT = "the cat sat on the mat"
MESSAGES = [{"role": "user", "content": PROMPT}]
CHUNK = [{"type": "text", "text": PROMPT, "holdover": {"chunk": True}}]

Check = Callable[[Any], bool]
# what is sent, and what must be so of the answer
Case = tuple[dict[str, Any], Check]


def text_of(answer: Any) -> str:
    choice = answer.choices[0]
    text: str = choice.text if hasattr(choice, "text") else choice.message.content
    return text


def length(count: int) -> Check:
    return lambda answer: answer.usage.completion_tokens == count


def anything(answer: Any) -> bool:
    return bool(answer.choices)


def streams(answer: Any) -> bool:
    return [chunk.choices[0].finish_reason for chunk in answer if chunk.choices][-1] in ("stop", "length")


def ends_with_usage(answer: Any) -> bool:
    return list(answer)[-1].usage.completion_tokens > 0


def said(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer.model_extra["holdover"]["cache"]
    return found


SHARED: dict[str, Case] = {
    "model": ({"model": NAME}, lambda answer: answer.model == NAME),
    "n": ({"n": 2}, lambda answer: len(answer.choices) == 2),
    "max_tokens": ({"max_tokens": 3, "ignore_eos": True}, length(3)),
    "temperature": ({"temperature": 1.5}, anything),
    "top_p": ({"top_p": 0.5, "temperature": 1}, anything),
    "top_k": ({"top_k": 5, "temperature": 1}, anything),
    "min_p": ({"min_p": 0.1, "temperature": 1}, anything),
    "frequency_penalty": ({"frequency_penalty": 1.0}, anything),
    "presence_penalty": ({"presence_penalty": 1.0}, anything),
    "repetition_penalty": ({"repetition_penalty": 1.2}, anything),
    "logit_bias": ({"logit_bias": {"70": 100}}, lambda answer: len(set(text_of(answer))) == 1),
    "guided_regex": ({"guided_regex": "(yes|no)"}, lambda answer: text_of(answer) in ("yes", "no")),
    "guided_grammar": ({"guided_grammar": 'start: "yes"'}, lambda answer: text_of(answer) == "yes"),
    "seed": ({"seed": 7, "temperature": 1}, anything),
    "stop": ({"stop": ["zzz", "qqq"]}, anything),
    "stop_token_ids": (
        {"stop_token_ids": list(range(300))},
        lambda answer: answer.choices[0].finish_reason == "stop",
    ),
    "ignore_eos": ({"ignore_eos": True, "max_tokens": 30}, length(30)),
    "stream": ({"stream": True}, streams),
    "stream_options": ({"stream": True, "stream_options": {"include_usage": True}}, ends_with_usage),
    "cache_salt": ({"cache_salt": "a tenant of its own"}, lambda answer: said(answer)["state_depth"] == 0),
    "use_cache": ({"use_cache": False}, lambda answer: said(answer)["state_depth"] == 0),
    "exact": ({"exact": True}, lambda answer: said(answer)["lineage"] in ("exact", None)),
}
CHAT: dict[str, Case] = SHARED | {
    "messages": ({"messages": [*MESSAGES, {"role": "assistant", "content": "hm"}, *MESSAGES]}, anything),
    "max_completion_tokens": ({"max_completion_tokens": 3, "max_tokens": None, "ignore_eos": True}, length(3)),
    "logprobs": ({"logprobs": True}, lambda answer: len(answer.choices[0].logprobs.content) > 0),
    "top_logprobs": (
        {"logprobs": True, "top_logprobs": 3},
        lambda answer: len(answer.choices[0].logprobs.content[0].top_logprobs) == 3,
    ),
    "response_format": (
        {"response_format": {"type": "json_object"}, "max_tokens": 40},
        lambda answer: text_of(answer).startswith("{"),
    ),
    "tools": ({"tools": []}, anything),
    "tool_choice": ({"tool_choice": "none"}, anything),
    "parallel_tool_calls": ({"parallel_tool_calls": False}, anything),
    "chat_template_kwargs": ({"chat_template_kwargs": {"enable_thinking": False}}, anything),
    "holdover": (
        {"messages": [{"role": "user", "content": CHUNK}], "holdover": {"selector": "all"}},
        anything,
    ),
}
COMPLETION: dict[str, Case] = SHARED | {
    "prompt": ({"prompt": [PROMPT, "hello"]}, lambda answer: len(answer.choices) == 2),
    "echo": ({"echo": True}, lambda answer: text_of(answer).startswith(PROMPT)),
    "logprobs": ({"logprobs": 2}, lambda answer: len(answer.choices[0].logprobs.top_logprobs[0]) >= 2),
    "prompt_logprobs": (
        {"prompt_logprobs": 1},
        lambda answer: answer.choices[0].model_extra["prompt_logprobs"][0] is None,
    ),
}
IGNORED_VALUES: dict[str, Any] = {
    "metadata": {"a": "b"},
    "prompt_cache_key": "k",
    "prompt_cache_options": {},
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "service_tier": "auto",
    "store": False,
    "user": "me",
}


def send(create: Callable[..., Any], defaults: dict[str, Any], given: dict[str, Any]) -> Any:
    """Ask with the client's own arguments where it has them, and beside them where it has none."""
    known = inspect.signature(create).parameters
    asked = {"model": NAME, "max_tokens": 6, "temperature": 0} | defaults | given
    own = {name: value for name, value in asked.items() if name in known and value is not None}
    return create(**own, extra_body={name: value for name, value in asked.items() if name not in known})


def test_every_parameter_has_a_case() -> None:
    assert CHAT.keys() == ChatRequest.model_fields.keys()
    assert COMPLETION.keys() == CompletionRequest.model_fields.keys()
    assert IGNORED_VALUES.keys() == IGNORED


@pytest.mark.parametrize("name", sorted(CHAT))
def test_chat(server: Live, name: str) -> None:
    given, check = CHAT[name]
    assert check(send(server.openai.chat.completions.create, {"messages": MESSAGES}, given))


@pytest.mark.parametrize("name", sorted(COMPLETION))
def test_completion(server: Live, name: str) -> None:
    given, check = COMPLETION[name]
    assert check(send(server.openai.completions.create, {"prompt": PROMPT}, given))


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_ignored(server: Live, name: str) -> None:
    given = {name: IGNORED_VALUES[name]}
    wanted = send(server.openai.completions.create, {"prompt": PROMPT}, {})
    assert text_of(send(server.openai.completions.create, {"prompt": PROMPT}, given)) == text_of(wanted)
    assert anything(send(server.openai.chat.completions.create, {"messages": MESSAGES}, given))


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_values_that_ask_for_nothing(server: Live, name: str) -> None:
    for value in UNSUPPORTED[name]:
        assert anything(send(server.openai.chat.completions.create, {"messages": MESSAGES}, {name: value}))


def test_the_client_has_no_parameter_that_is_unknown() -> None:
    """What the client can send is accepted, ignored or refused by name, but never taken for a slip of the pen."""
    transport = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    for create, model in ((Chats.create, ChatRequest), (Texts.create, CompletionRequest)):
        known = model.model_fields.keys() | IGNORED | UNSUPPORTED.keys() | transport
        assert inspect.signature(create).parameters.keys() <= known
