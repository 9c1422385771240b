import pytest

from tests.server.live import NAME, Live

PROMPT = "the cat sat on the"


def test_shape(server: Live) -> None:
    answer = server.complete(PROMPT)
    assert (answer.object, answer.model, answer.id[:5]) == ("text_completion", NAME, "cmpl-")
    choice = answer.choices[0]
    assert (len(answer.choices), choice.index, choice.finish_reason, choice.logprobs) == (1, 0, "length", None)
    assert choice.text
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_default_length_is_the_api_s(server: Live) -> None:
    body = {"model": NAME, "prompt": PROMPT, "temperature": 0, "ignore_eos": True}
    assert server.http.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 16


def test_token_ids_are_the_text_they_encode(server: Live) -> None:
    ids = server.engine.engine.loaded.tokenizer.encode(PROMPT)
    texts = {server.complete(prompt).choices[0].text for prompt in (PROMPT, ids, [PROMPT], [ids])}
    assert len(texts) == 1


@pytest.mark.parametrize("top", [0, 3])
def test_logprobs(server: Live, top: int) -> None:
    choice = server.complete(PROMPT, logprobs=top).choices[0]
    reported = choice.logprobs
    assert len(reported.tokens) == len(reported.token_logprobs) == len(reported.text_offset) == 12
    assert all(logprob < 0 for logprob in reported.token_logprobs)
    for token, logprob, best in zip(reported.tokens, reported.token_logprobs, reported.top_logprobs, strict=True):
        # greedy: the token is the best one, which stands for all that are written like it
        assert max(best.values()) == pytest.approx(logprob)
        assert token in best
    lengths = [len(token) for token in reported.tokens]
    assert reported.text_offset == [sum(lengths[:i]) for i in range(12)]


def test_prompt_logprobs(server: Live) -> None:
    tokenizer = server.engine.engine.loaded.tokenizer
    ids = tokenizer.encode(PROMPT)
    server.complete(PROMPT)
    answer = server.complete(PROMPT, extra_body={"prompt_logprobs": 2})
    reported = answer.choices[0].model_extra["prompt_logprobs"]
    assert reported[0] is None
    assert [str(token) in entry for token, entry in zip(ids[1:], reported[1:], strict=True)] == [True] * (len(ids) - 1)
    for entry in reported[1:]:
        ranked = sorted((item["rank"], item["logprob"]) for item in entry.values() if item["rank"])
        assert [rank for rank, _ in ranked] == [1, 2]
        assert ranked[0][1] >= ranked[1][1]
        assert all(item["decoded_token"] == tokenizer.token_text(int(token)) for token, item in entry.items())
    assert "prompt logprobs" in answer.model_extra["holdover"]["cache"]["reason"]


def test_seed_decides(server: Live) -> None:
    def draw(seed: int) -> str:
        text: str = server.complete(PROMPT, temperature=1.5, seed=seed, max_tokens=20).choices[0].text
        return text

    assert draw(1) == draw(1)
    assert len({draw(seed) for seed in range(4)}) > 1


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_is_cut_off(server: Live, stream: bool) -> None:
    whole = server.complete(PROMPT, max_tokens=24).choices[0].text
    stop = whole[8:11]
    answer = server.complete(PROMPT, max_tokens=24, stop=[stop, "never written"], stream=stream)
    if stream:
        chunks = list(answer)
        text, reason = "".join(c.choices[0].text for c in chunks), chunks[-1].choices[0].finish_reason
    else:
        text, reason = answer.choices[0].text, answer.choices[0].finish_reason
    assert (text, reason) == (whole[: whole.index(stop)], "stop")


def test_end_token_ends_and_is_counted(server: Live) -> None:
    ids = server.engine.engine.loaded.tokenizer.encode(PROMPT)
    first = server.complete(ids, logprobs=0, max_tokens=1).choices[0].logprobs.tokens[0]
    vocabulary = range(server.engine.engine.loaded.host.layout.vocab_size)
    same = [i for i in vocabulary if server.engine.engine.loaded.tokenizer.token_text(i) == first]
    answer = server.complete(ids, extra_body={"stop_token_ids": same})
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("", "stop")
    assert answer.usage.completion_tokens == 1


def test_neutral_and_ignored_fields(server: Live) -> None:
    plain = server.complete(PROMPT).choices[0].text
    body = {"best_of": 1, "echo": False, "logit_bias": {}, "user": "somebody", "metadata": {"a": "b"}, "suffix": None}
    extra = {"top_k": -1, "min_p": 0.0, "n": 1}
    assert server.complete(PROMPT, extra_body=body | extra).choices[0].text == plain
