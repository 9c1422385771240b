"""A streamed reply however its bytes are cut, and streams that are none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdover.errors import EndpointError
from holdover.evaluation.serve.reply import Answer, Reply

URL = "http://server"


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


def says(text: str) -> bytes:
    return event(choices=[{"delta": {"content": text}}])


ROLE = event(choices=[{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
END = event(choices=[{"delta": {}, "finish_reason": "stop"}])
COUNTS = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
USAGE = event(choices=[], usage=COUNTS)
DONE = b"data: [DONE]\n\n"
# a line separator ends lines of text, not lines of a stream
TEXT = "naïve \u2028 “日本” 🙂"
WHOLE = ROLE + says(TEXT) + says("!") + END + USAGE + DONE


def received(*packets: bytes) -> Answer:
    reply = Reply(URL)
    for packet in packets:
        reply.push(packet)
    return reply.finish()


def had_token(*packets: bytes) -> bool:
    """Whether a first token was seen: the time to it is that to the end otherwise."""
    answer = received(*packets, DONE)
    return answer.ttft_ms < answer.e2e_ms


@pytest.mark.parametrize("stream", [WHOLE, WHOLE.replace(b"\n", b"\r\n"), WHOLE.replace(b"data: ", b"data:")])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, len(WHOLE) * 2])
def test_packets_are_cut_anywhere(stream: bytes, size: int) -> None:
    answer = received(*(stream[at : at + size] for at in range(0, len(stream), size)))
    assert answer.text == TEXT + "!"
    assert (answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens) == (9, 4, 2)
    assert answer.ttft_ms < answer.e2e_ms


def test_what_is_no_data_is_passed_over() -> None:
    assert received(b": keep-alive\n\nevent: message\nid: 1\n", says("a"), DONE).text == "a"


def test_a_role_is_no_token() -> None:
    assert not had_token(ROLE)
    assert not had_token(event(choices=[]), USAGE)
    assert had_token(ROLE, says("a"))
    assert had_token(event(choices=[{"delta": {"reasoning_content": "hm"}}]))
    assert had_token(END)


def test_the_last_usage_counts() -> None:
    first = event(choices=[{"delta": {"content": "a"}}], usage={"prompt_tokens": 9, "completion_tokens": 1})
    none = event(choices=[], usage=None)
    assert received(first, USAGE, none, DONE).completion_tokens == 2
    assert received(says("a"), none, DONE).prompt_tokens is None


@pytest.mark.parametrize("cut", [1, 20])
def test_an_error_behind_the_first_token_is_said_at_once(cut: int) -> None:
    reply = Reply(URL)
    reply.push(says('of an "error" that is a word') + says("error"))
    error = event(error={"message": "out of memory"})
    reply.push(error[:cut])
    with pytest.raises(EndpointError, match="broke a reply off: out of memory"):
        reply.push(error[cut:])


def test_an_error_in_one_packet_with_the_first_token_is_said_at_once() -> None:
    with pytest.raises(EndpointError, match="broke a reply off: out of memory"):
        Reply(URL).push(says("a") + event(error="out of memory"))


@pytest.mark.parametrize("end", [b"", DONE[:7], says("b")[:-4], b"data: [DONE]"])
def test_a_stream_that_is_cut_is_not_whole(end: bytes) -> None:
    with pytest.raises(EndpointError, match="before its reply was whole"):
        received(says("a"), end)


MALFORMED = [
    b"[]",
    b"1",
    b'{"choices": ["a"]}',
    b'{"choices": 1}',
    b'{"choices": {"delta": {}}}',
    b'{"choices": [{"delta": "a"}]}',
    b'{"choices": [{"delta": {"content": 1}}]}',
    b'{"choices": [{"delta": {"content": ["a"]}}]}',
    b'{"usage": 3}',
    b'{"usage": ["prompt_tokens"]}',
    b'{"usage": {"prompt_tokens": "nine"}}',
    b'{"usage": {"prompt_tokens_details": 4}}',
]


@pytest.mark.parametrize("data", MALFORMED)
@pytest.mark.parametrize("before", [b"", says("a")])
def test_what_is_no_chunk_is_shown(before: bytes, data: bytes) -> None:
    with pytest.raises(EndpointError, match="is no chunk") as failed:
        received(before, b"data: " + data + b"\n\n", DONE)
    assert repr(data.decode()) in str(failed.value)


def test_what_is_not_json_is_shown() -> None:
    with pytest.raises(EndpointError, match=r"not JSON: '\{'"):
        received(b"data: {\n\n", DONE)
    with pytest.raises(EndpointError, match="not JSON"):
        received(b'data: {"choices": "\xff"}\n\n', DONE)
