"""Prompts of chunks over HTTP with the official client: what is reused and refused, and that all else goes along."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import BadRequestError, InternalServerError

from holdover.engine.chunks.settings import ChunkSettings
from tests.server.live import NAME, Live
from tests.server.templates import saying, serving
from tests.server.test_disconnect import connect
from tests.server.test_metrics import scrape
from tests.server.test_tools import CALL, TOOLS, WRITTEN

# a line break is a token of its own: these texts are tokenised the same wherever they stand
CATS, DOGS = "the cat sat on the mat\n" * 3, "and the dog said hello to the user\n" * 2
LONG = "the system sat on the dog and the cat\n" * 12
QUESTION = "who sat on the mat?"
TOKENS = 48


@pytest.fixture(scope="module")
def shared_chunks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    settings = ChunkSettings(tokens=TOKENS)
    folder = tmp_path_factory.mktemp("chunks")
    with serving(folder, "hermes", state_budget=2**20, chunk_size=16, chunks=settings) as live:
        yield live


@pytest.fixture
def server(shared_chunks: Live) -> Iterator[Live]:
    shared_chunks.flush()
    yield shared_chunks
    shared_chunks.check()


def marked(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "holdover": {"chunk": True}}


def over(*documents: str, question: str = QUESTION, role: str = "user") -> list[dict[str, Any]]:
    parts = [{"type": "text", "text": "read:\n"}, *map(marked, documents)]
    if role == "user":
        return [{"role": "user", "content": [*parts, {"type": "text", "text": question}]}]
    return [{"role": role, "content": parts}, {"role": "user", "content": question}]


def said(answer: Any) -> Any:
    return answer.model_extra["holdover"]["cache"]


def query_of(server: Live) -> list[int]:
    """What follows the last document."""
    rest = f"{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    return server.engine.engine.loaded.tokenizer.encode_part(rest)


def built(server: Live) -> int:
    return server.on_engine(lambda core: core.cache.counters["chunks_built"])


def text(chunks: Any) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


@pytest.mark.parametrize("role", ["user", "system"])
def test_with_everything_selected_the_answer_is_the_plain_one(server: Live, role: str) -> None:
    messages = over(CATS, DOGS, role=role)
    plain = server.chat([{"role": m["role"], "content": joined(m["content"])} for m in messages], logprobs=True)
    server.flush()
    before = built(server)
    answer = server.chat(messages, logprobs=True, extra_body={"holdover": {"selector": "all"}})
    assert answer.choices[0].message == plain.choices[0].message
    assert answer.usage == plain.usage
    assert built(server) == before
    assert said(answer)["reused"] == 0
    assert said(answer)["recomputed"] + said(answer)["new"] == answer.usage.prompt_tokens
    for one, other in zip(answer.choices[0].logprobs.content, plain.choices[0].logprobs.content, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def joined(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def test_the_same_documents_in_another_order_are_reused(server: Live) -> None:
    before = built(server)
    first = server.chat(over(CATS, DOGS))
    assert built(server) == before + 2
    second = server.chat(over(DOGS, CATS, question="and who said hello?"))
    assert built(server) == before + 2
    for answer in (first, second):
        usage, cache = answer.usage, said(answer)
        assert usage.prompt_tokens_details.cached_tokens == cache["reused"] > usage.prompt_tokens // 3
        assert cache["reused"] + cache["recomputed"] + cache["new"] == usage.prompt_tokens
        assert cache["lineage"].startswith("composed(")
        assert cache["reason"].startswith("composed: ")
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


def test_long_documents_are_cut(server: Live) -> None:
    before = built(server)
    answer = server.chat(over(LONG))
    length = len(server.engine.engine.loaded.tokenizer.encode_part(LONG))
    assert built(server) - before == -(-length // TOKENS) > 2
    assert said(answer)["reused"] + said(answer)["recomputed"] == length
    assert server.on_engine(lambda core: max(len(e) for e in core.chunks.store.entries.values())) == TOKENS


def test_the_next_turn_resumes(server: Live) -> None:
    messages = over(CATS, DOGS)
    first = server.chat(messages)
    reply = {"role": "assistant", "content": first.choices[0].message.content}
    second = server.chat([*messages, reply, {"role": "user", "content": "why?"}])
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached == said(second)["state_depth"] >= first.usage.prompt_tokens - len("<|im_start|>assistant\n")
    assert said(second)["reason"].startswith("hit: ")
    assert said(second)["lineage"].startswith("composed(")
    assert (said(second)["reused"], said(second)["recomputed"]) == (0, 0)
    assert said(second)["new"] == second.usage.prompt_tokens - cached
    # another question over the same documents begins behind them
    third = server.chat(over(CATS, DOGS, question="what?"))
    assert said(third)["state_depth"] == said(first)["prompt_tokens"] - len(query_of(server))
    assert said(third)["new"] == third.usage.prompt_tokens - said(third)["state_depth"]


def test_tenants_share_nothing(server: Live) -> None:
    before = built(server)
    for number, salt in enumerate(["a", "b"]):
        answer = server.chat(over(CATS, DOGS), extra_body={"cache_salt": salt})
        assert said(answer)["reason"].startswith("composed: ")
        assert built(server) == before + 2 * (number + 1)
    assert said(server.chat(over(CATS, DOGS), extra_body={"cache_salt": "a"}))["state_depth"] > 0
    assert built(server) == before + 4


def test_two_requests_for_one_chunk_build_it_once(server: Live) -> None:
    before, go = built(server), threading.Event()
    with ThreadPoolExecutor(3) as pool:
        # both are there before the engine sees the first
        held = pool.submit(server.on_engine, lambda core: go.wait())
        asked = [pool.submit(server.chat, over(LONG, question=question)) for question in ("who?", "why?")]
        while server.engine._inbox.qsize() < 2:
            pass
        go.set()
        assert held.result()
        answers = [one.result() for one in asked]
    assert built(server) - before == server.on_engine(lambda core: len(core.chunks.store.entries))
    assert all(said(answer)["reused"] or said(answer)["state_depth"] for answer in answers)


@pytest.mark.parametrize(
    "options",
    [
        {"logprobs": True, "top_logprobs": 2},
        {"stop": ["a", "e"]},
        {"frequency_penalty": 1.0, "presence_penalty": 0.5, "extra_body": {"repetition_penalty": 1.3}},
        {"temperature": 1, "seed": 3},
        {"response_format": {"type": "json_object"}, "max_tokens": 30},
        {"tools": TOOLS, "tool_choice": "required", "max_tokens": 300},
        {"extra_body": {"chat_template_kwargs": {"thinking": True}}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_all_else_goes_along(server: Live, options: dict[str, Any]) -> None:
    whole = server.chat(over(CATS, DOGS), **options)
    server.flush()
    streamed = list(server.chat(over(CATS, DOGS), stream=True, stream_options={"include_usage": True}, **options))
    assert text(streamed) == (whole.choices[0].message.content or "")
    assert streamed[-1].usage == whole.usage
    assert whole.usage.prompt_tokens_details.cached_tokens == said(whole)["reused"] > 0
    if "tools" in options:
        assert whole.choices[0].message.tool_calls[0].function.name in ("weather", "time")
    server.flush()
    # what is drawn, forbidden or reported is what it is without chunks
    every = {**options, "extra_body": {**options.get("extra_body", {}), "holdover": {"selector": "all"}}}
    plain = [{"role": "user", "content": joined(over(CATS, DOGS)[0]["content"])}]
    assert server.chat(over(CATS, DOGS), **every).choices[0].message.content == (
        server.chat(plain, **options).choices[0].message.content
    )


def test_calls_of_tools_are_read(server: Live) -> None:
    with saying(server, WRITTEN["hermes"]([CALL])):
        answer = server.chat(over(CATS), tools=TOOLS, max_tokens=300)
    assert answer.choices[0].finish_reason == "tool_calls"
    assert said(answer)["reused"] > 0
    # what a tool gave back may be a chunk too
    call = answer.choices[0].message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": [marked(DOGS)]}
    after = server.chat([*over(CATS), call, result], tools=TOOLS)
    assert said(after)["reused"] > said(answer)["reused"]


def test_choices_share_what_was_composed(server: Live) -> None:
    alone = [server.chat(over(CATS, DOGS), temperature=1, seed=5 + i).choices[0].message.content for i in range(3)]
    server.flush()
    answer = server.chat(over(CATS, DOGS), n=3, temperature=1, seed=5)
    assert [choice.message.content for choice in answer.choices] == alone
    caches = [choice.model_extra["holdover"]["cache"] for choice in answer.choices]
    assert answer.usage.prompt_tokens_details.cached_tokens == caches[0]["reused"] > 0
    assert [cache["state_depth"] for cache in caches[1:]] == [answer.usage.prompt_tokens - 1] * 2


def test_keeping_out_of_the_cache(server: Live) -> None:
    server.chat(over(CATS))
    before = built(server)
    answer = server.chat(over(CATS, DOGS), extra_body={"use_cache": False, "holdover": {"selector": "epic"}})
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert said(answer)["reason"] == "miss: the request asked not to use the cache"
    assert said(answer)["lineage"] is None
    assert built(server) == before
    plain = joined(over(CATS, DOGS)[0]["content"])
    assert answer.choices[0].message == server.chat(plain).choices[0].message


def test_a_client_that_leaves_while_its_chunks_are_built(server: Live) -> None:
    aborted = server.on_engine(lambda core: core.stats.aborted)
    body = {"model": NAME, "messages": over(LONG, DOGS), "max_tokens": 600, "ignore_eos": True}
    with connect(server, body, "/v1/chat/completions"):
        while not server.on_engine(lambda core: core.has_work):
            pass
    server.settle()
    assert server.on_engine(lambda core: core.stats.aborted) == aborted + 1
    assert said(server.chat(over(LONG, DOGS)))["prompt_tokens"] > 0


def test_what_was_done_is_counted(server: Live) -> None:
    before = scrape(server)
    answers = [server.chat(over(CATS, DOGS)), server.chat(over(DOGS, CATS)), server.chat(over(CATS, DOGS))]
    server.chat("hello")
    after = scrape(server)

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert [bool(said(answer)["reused"]) for answer in answers] == [True, True, False]
    assert grown("holdover_composed_requests_total") == grown("holdover_chunks_built_total") == 2
    assert grown("holdover_chunks_evicted_total") == 0
    for use in ("reused", "recomputed", "new"):
        assert grown(f"holdover_chunk_tokens_total,use={use}") == sum(said(answer)[use] for answer in answers) > 0
    assert after["holdover_chunks"] == 2
    tokenizer = server.engine.engine.loaded.tokenizer
    assert after["holdover_chunk_rows"] == sum(len(tokenizer.encode_part(text)) for text in (CATS, DOGS))
    assert after["holdover_chunk_extra_bytes"] == 0


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"holdover": {"selector": "best"}}, "holdover.selector", "must be one of"),
        ({"holdover": {"initialiser": "first"}}, "holdover.initialiser", "must be one of"),
        ({"holdover": {"initialiser": "exact"}}, "holdover.initialiser", "kept with transitions"),
        ({"holdover": {"window": "none"}}, "holdover.window", "must be one of"),
        ({"holdover": {"ratio": 2}}, "holdover.ratio", "between 0 and 1"),
        ({"holdover": {"ratio": "0.5"}}, "holdover.ratio", "number"),
        ({"holdover": {"chunk": True}}, "holdover.chunk", "Extra inputs"),
        ({"exact": True}, "exact", "a composed state is not exact"),
        ({"max_tokens": 1000}, "max_tokens", "context"),
        ({"messages": over(LONG * 12)}, "messages", "context"),
        ({"messages": over("")}, "messages.0.content", "needs some text"),
        ({"messages": over(), "holdover": {}}, "holdover", "no part"),
        ({"messages": [{"role": "user", "content": [marked("a") | {"type": "image"}]}]}, "messages.0.content", "text"),
    ],
)
def test_refused(server: Live, body: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(BadRequestError, match=message) as error:
        server.openai.post("/chat/completions", body={"model": NAME, "messages": over(CATS), **body}, cast_to=object)
    assert error.value.param == param
    assert not server.on_engine(lambda core: core.has_work)


@pytest.mark.parametrize("mark", [True, {}, {"chunk": 1}, {"chunk": True, "ratio": 0.1}, {"Chunk": True}])
def test_a_mark_is_what_it_is_or_refused(server: Live, mark: Any) -> None:
    part = {"type": "text", "text": CATS, "holdover": mark}
    with pytest.raises(BadRequestError, match="must be"):
        server.chat([{"role": "user", "content": [part]}])


def test_what_is_not_marked_is_text(server: Live) -> None:
    part = {"type": "text", "text": CATS, "holdover": {"chunk": False}}
    answer = server.chat([{"role": "user", "content": [part]}])
    assert said(answer) == said(server_flushed(server).chat(CATS))
    assert (said(answer)["reused"], said(answer)["recomputed"], said(answer)["new"]) == (0, 0, 0)


def server_flushed(server: Live) -> Live:
    server.flush()
    return server


def test_only_chats_have_chunks(server: Live) -> None:
    with pytest.raises(BadRequestError, match="unknown field: holdover"):
        server.complete("hello", extra_body={"holdover": {}})
    response = server.http.post("/v1/cache/pins", json={"messages": over(CATS)})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")


def test_more_chunks_than_there_is_room_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = ChunkSettings(tokens=TOKENS, rows=60)
    with serving(tmp_path_factory.mktemp("few"), "hermes", state_budget=2**20, chunks=settings) as server:
        with pytest.raises(InternalServerError, match="chunks may have 60 rows") as error:
            server.chat(over(LONG))
        assert (error.value.status_code, error.value.code) == (503, "no_capacity")
        assert said(server.chat(over(CATS)))["reused"] > 0
        server.check()
