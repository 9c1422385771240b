"""Several choices, several prompts and echo."""

import json
from typing import Any

import pytest

from tests.server.live import NAME, Live
from tests.server.test_disconnect import connect, wait_until_running
from tests.server.tiny import CONTEXT, END

PROMPT = "the cat sat on the mat and the dog sat on the cat " * 3
SAMPLED: dict[str, Any] = {"temperature": 1.5, "seed": 11, "max_tokens": 10}


def texts(answer: Any) -> list[str]:
    assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
    return [choice.text for choice in answer.choices]


def streamed(chunks: Any, count: int) -> list[str]:
    """What each choice of a stream wrote; none may go on after its end."""
    written, ended = [""] * count, set()
    for chunk in chunks:
        for choice in chunk.choices:
            assert choice.index not in ended
            part = choice.text if hasattr(choice, "text") else choice.delta.content
            written[choice.index] += part or ""
            if choice.finish_reason:
                ended.add(choice.index)
    assert ended == set(range(count))
    return written


def test_choices_are_those_of_their_seeds(server: Live) -> None:
    alone = [server.complete(PROMPT, **SAMPLED | {"seed": 11 + i}).choices[0].text for i in range(4)]
    server.flush()
    answer = server.complete(PROMPT, n=4, **SAMPLED)
    assert texts(answer) == alone
    assert len(set(alone)) > 1
    assert streamed(server.complete(PROMPT, n=4, stream=True, **SAMPLED), 4) == alone


def test_the_prompt_is_computed_once(server: Live) -> None:
    before = server.on_engine(lambda core: core.stats.hit_tokens)
    answer = server.complete(PROMPT, n=3, **SAMPLED)
    prompt = answer.usage.prompt_tokens
    said = [choice.model_extra["holdover"]["cache"] for choice in answer.choices]
    assert [report["state_depth"] for report in said] == [0, prompt - 1, prompt - 1]
    assert server.on_engine(lambda core: core.stats.hit_tokens) - before == 2 * (prompt - 1)
    # it counts once; so does what was found of it
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.usage.completion_tokens == 30
    assert answer.usage.total_tokens == prompt + 30
    assert answer.model_extra["holdover"]["cache"] == said[0]


def test_choices_of_a_chat(server: Live) -> None:
    alone = [server.chat(PROMPT, **SAMPLED | {"seed": 11 + i}).choices[0].message.content for i in range(3)]
    answer = server.chat(PROMPT, n=3, **SAMPLED)
    assert [choice.message.content for choice in answer.choices] == alone
    chunks = list(server.chat(PROMPT, n=3, stream=True, stream_options={"include_usage": True}, **SAMPLED))
    assert streamed(chunks, 3) == alone
    assert sum(bool(c.choices) and c.choices[0].delta.role == "assistant" for c in chunks) == 3
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens


@pytest.mark.parametrize("length", [1, 2])
def test_choices_of_a_short_prompt(server: Live, length: int) -> None:
    assert len(set(texts(server.complete([5] * length, n=3)))) == 1


def test_choices_that_keep_out_of_the_cache(server: Live) -> None:
    answer = server.complete(PROMPT, n=2, extra_body={"use_cache": False}, **SAMPLED)
    assert [choice.model_extra["holdover"]["cache"]["state_depth"] for choice in answer.choices] == [0, 0]
    assert len(server.complete(PROMPT, n=2, **SAMPLED).choices) == 2


def test_more_choices_than_may_run(server: Live) -> None:
    limit = server.on_engine(lambda core: core.limits.max_running)
    answer = server.complete("hello", n=limit + 5, temperature=1, seed=0, max_tokens=3)
    assert len(texts(answer)) == limit + 5


def test_several_prompts(server: Live) -> None:
    ids = server.engine.engine.loaded.tokenizer.encode("the dog")
    alone = [server.complete(prompt).choices[0].text for prompt in ("the cat", "hello", "the dog")]
    answer = server.complete(["the cat", "hello", "the dog"])
    assert texts(answer) == alone
    assert texts(server.complete([ids, ids])) == [alone[2]] * 2
    assert streamed(server.complete(["the cat", "hello", "the dog"], stream=True), 3) == alone
    prompts = [server.complete(prompt).usage.prompt_tokens for prompt in ("the cat", "hello", "the dog")]
    assert answer.usage.prompt_tokens == sum(prompts)
    written = [server.complete(prompt).usage.completion_tokens for prompt in ("the cat", "hello", "the dog")]
    assert answer.usage.completion_tokens == sum(written)


def test_several_choices_of_several_prompts_stand_together(server: Live) -> None:
    alone = [
        server.complete(prompt, **SAMPLED | {"seed": 11 + i}).choices[0].text
        for prompt in ("the cat", "hello")
        for i in range(2)
    ]
    assert texts(server.complete(["the cat", "hello"], n=2, **SAMPLED)) == alone


@pytest.mark.parametrize("stream", [False, True])
def test_echo(server: Live, stream: bool) -> None:
    plain = texts(server.complete(["the cat", "hello ß"], n=2, **SAMPLED))
    answer = server.complete(["the cat", "hello ß"], n=2, echo=True, stream=stream, **SAMPLED)
    written = streamed(answer, 4) if stream else texts(answer)
    assert written == [prompt + text for prompt, text in zip(["the cat"] * 2 + ["hello ß"] * 2, plain, strict=True)]


def test_echo_of_token_ids_is_their_text(server: Live) -> None:
    ids = server.engine.engine.loaded.tokenizer.encode("the cat")
    assert texts(server.complete(ids, echo=True))[0].startswith("the cat")


def test_echo_with_logprobs_is_the_prompt_s_and_the_answer_s(server: Live) -> None:
    plain = server.complete(PROMPT, logprobs=2).choices[0].logprobs
    prompt = server.complete(PROMPT, extra_body={"prompt_logprobs": 2})
    wanted = prompt.choices[0].model_extra["prompt_logprobs"]
    answer = server.complete(PROMPT, logprobs=2, echo=True, n=2)
    first, second = (choice.logprobs for choice in answer.choices)
    count = prompt.usage.prompt_tokens
    assert first.tokens[count:] == plain.tokens
    assert "".join(first.tokens[:count]) == PROMPT == answer.choices[0].text[: len(PROMPT)]
    assert first.token_logprobs[0] is None
    assert first.top_logprobs[0] is None
    ids = server.engine.engine.loaded.tokenizer.encode(PROMPT)
    for i in range(1, count):
        assert first.token_logprobs[i] == pytest.approx(wanted[i][str(ids[i])]["logprob"], abs=1e-4)
    assert first.token_logprobs[count:] == pytest.approx(plain.token_logprobs, abs=1e-4)
    whole = [i for i, token in enumerate(first.tokens) if "\ufffd" not in token and token != END]
    assert len(whole) > count
    assert all(answer.choices[0].text.startswith(first.tokens[i], first.text_offset[i]) for i in whole)
    # computed once, told of both
    assert second.token_logprobs[1:count] == first.token_logprobs[1:count]
    assert answer.choices[1].model_extra["holdover"]["cache"]["state_depth"] == count - 1


def test_a_prompt_alone(server: Live) -> None:
    """What evaluation harnesses send for the likelihood of a text."""
    ids = server.engine.engine.loaded.tokenizer.encode(PROMPT)
    texts_of = {"echo": True, "logprobs": 1}
    wanted = server.complete(ids, max_tokens=1, **texts_of).choices[0].logprobs
    before = server.on_engine(lambda core: (core.stats.prefill_forwards, core.stats.decode_forwards))
    answer = server.complete(ids, max_tokens=0, **texts_of)
    after = server.on_engine(lambda core: (core.stats.prefill_forwards, core.stats.decode_forwards))
    assert (after[0] - before[0], after[1] - before[1]) == (1, 0)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == (PROMPT, "length")
    assert choice.logprobs.tokens == wanted.tokens[:-1]
    assert choice.logprobs.text_offset == wanted.text_offset[:-1]
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(wanted.token_logprobs[1:-1], abs=1e-4)
    assert choice.logprobs.top_logprobs[1:] == [pytest.approx(one, abs=1e-4) for one in wanted.top_logprobs[1:-1]]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(ids), 0)
    assert answer.model_extra["holdover"]["timing"]["first_token_ms"] is None


def test_prompts_alone(server: Live) -> None:
    answer = server.complete(["the cat", "hello ß", "a"], max_tokens=0, echo=True)
    assert texts(answer) == ["the cat", "hello ß", "a"]
    # all of the context may be prompt
    assert server.complete([5] * CONTEXT, max_tokens=0, echo=True).usage.total_tokens == CONTEXT


def test_a_client_that_leaves_takes_all_choices_with_it(server: Live) -> None:
    aborted = server.on_engine(lambda core: core.stats.aborted)
    body = {"model": NAME, "prompt": ["the cat", "hello"], "n": 2, "max_tokens": 900, "ignore_eos": True}
    with connect(server, body | {"stream": True, "temperature": 0}) as connection:
        wait_until_running(server)
        assert connection.recv(1)
    server.settle()
    # those that were not started yet leave nothing to abort
    assert 2 <= server.on_engine(lambda core: core.stats.aborted) - aborted <= 4


def test_a_failure_of_one_choice_is_the_answer_s(server: Live) -> None:
    runner = server.engine.engine.core.runner
    run = runner.run

    def fail(*args: Any, **options: Any) -> Any:
        runner.run = run
        raise RuntimeError("broken")

    server.complete("the cat", max_tokens=1)
    runner.run = fail
    response = server.http.post("/v1/completions", json={"model": NAME, "prompt": ["a b", "hello"], "n": 2})
    assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")
    assert server.complete("the cat").choices[0].text


def test_usage_and_ends_of_a_stream_of_choices(server: Live) -> None:
    body = {
        "model": NAME,
        "prompt": "hello",
        "n": 3,
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    response = server.http.post("/v1/completions", json=body | {"stream_options": {"include_usage": True}})
    parts = [json.loads(part[6:]) for part in response.text.split("\n\n")[:-2]]
    ends = [part for part in parts if part["choices"] and part["choices"][0]["finish_reason"]]
    assert sorted(part["choices"][0]["index"] for part in ends) == [0, 1, 2]
    assert all(part["holdover"]["cache"]["prompt_tokens"] for part in ends)
    assert parts[-1]["usage"]["completion_tokens"] == 12
    assert all(part["usage"] is None for part in parts[:-1])
