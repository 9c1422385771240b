"""Penalties and biases over HTTP, with the official client."""

from typing import Any

import pytest

from tests.server.live import NAME, Live

PROMPT = "the cat sat on the mat and the cat"


def tokens(server: Live, **options: Any) -> list[str]:
    answer = server.complete(PROMPT, max_tokens=16, logprobs=0, **options)
    written: list[str] = answer.choices[0].logprobs.tokens
    return written


def bias(server: Live, **biases: float) -> dict[str, float]:
    only_token = server.engine.engine.loaded.tokenizer.only_token
    return {str(only_token(letter)): value for letter, value in biases.items()}


def test_frequency_penalty_grows(server: Live) -> None:
    letters = bias(server, z=95, y=90)
    plain = tokens(server, logit_bias=letters)
    assert set(plain) == {"z"}
    assert tokens(server, logit_bias=letters, frequency_penalty=0.0) == plain
    assert set(tokens(server, logit_bias=letters, frequency_penalty=2.0)) == {"y", "z"}
    assert tokens(server, logit_bias=letters, frequency_penalty=-2.0) == plain


def test_presence_penalty_does_not(server: Live) -> None:
    close, far = bias(server, z=91, y=90), bias(server, z=95, y=90)
    assert tokens(server, logit_bias=close)[:2] == ["z", "z"]
    assert tokens(server, logit_bias=close, presence_penalty=2.0)[:2] == ["z", "y"]
    assert set(tokens(server, logit_bias=far, presence_penalty=2.0)) == {"z"}


def test_repetition_penalty_counts_the_prompt(server: Live) -> None:
    ids = server.engine.engine.loaded.tokenizer.encode(PROMPT)
    known = {server.engine.engine.loaded.tokenizer.token_text(i) for i in ids}
    assert not set(tokens(server)) <= known
    # below 1 it makes a token that is there already more probable
    assert set(tokens(server, extra_body={"repetition_penalty": 0.001})) <= known


def test_logit_bias_forces_and_forbids(server: Live) -> None:
    assert set(tokens(server, logit_bias=bias(server, z=100))) == {"z"}
    assert set(tokens(server, logit_bias=bias(server, z=-100, y=90))) == {"y"}


def test_logprobs_stay_the_model_s(server: Live) -> None:
    wanted = server.engine.engine.loaded.tokenizer.only_token("z")
    plain = server.complete(PROMPT, max_tokens=1, logprobs=20).choices[0].logprobs
    biased = server.complete(PROMPT, max_tokens=1, logprobs=20, logit_bias={str(wanted): 100}).choices[0].logprobs
    assert biased.tokens == ["z"]
    best = max(plain.top_logprobs[0].items(), key=lambda item: item[1])
    assert biased.top_logprobs[0][best[0]] == pytest.approx(best[1], abs=1e-4)
    assert biased.token_logprobs[0] < best[1]


@pytest.mark.parametrize("stream", [False, True])
def test_chats_are_penalised_too(server: Live, stream: bool) -> None:
    wanted = server.engine.engine.loaded.tokenizer.only_token("q")
    answer = server.chat("hello", max_tokens=4, logit_bias={str(wanted): 100}, stream=stream)
    text = "".join(c.choices[0].delta.content or "" for c in answer) if stream else answer.choices[0].message.content
    assert text == "qqqq"


def test_a_seed_and_penalties(server: Live) -> None:
    draws = {tuple(tokens(server, temperature=1.2, seed=5, frequency_penalty=1.0)) for _ in range(2)}
    assert len(draws) == 1


def test_user_is_ignored(server: Live) -> None:
    plain = server.chat("hello").choices[0].message.content
    answer = server.openai.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": "hello"}], max_tokens=12, temperature=0, user="someone"
    )
    assert answer.choices[0].message.content == plain
