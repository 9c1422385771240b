"""What the cache gives over HTTP, and that every response says why it was not more."""

from typing import Any

from tests.server.live import Live

LONG = "the cat sat on the mat and the dog sat on the cat " * 8


def cached(answer: Any) -> int:
    tokens: int = answer.usage.prompt_tokens_details.cached_tokens
    assert tokens == answer.model_extra["holdover"]["cache"]["state_depth"]
    return tokens


def reason(answer: Any) -> str:
    text: str = answer.model_extra["holdover"]["cache"]["reason"]
    return text


def test_every_turn_resumes_deeper(server: Live) -> None:
    messages = [{"role": "system", "content": LONG}, {"role": "user", "content": "hello"}]
    before = server.chat(messages)
    assert cached(before) == 0
    assert reason(before).startswith("miss: no cached prompt")
    for turn in range(3):
        messages += [before.choices[0].message.model_dump(), {"role": "user", "content": f"and {turn}"}]
        answer = server.chat(messages)
        assert cached(answer) >= before.usage.prompt_tokens > cached(before)
        assert reason(answer).startswith(f"hit: resumed at {cached(answer)} of {answer.usage.prompt_tokens} tokens")
        before = answer
    report = before.model_extra["holdover"]
    assert (report["cache"]["lineage"], report["cache"]["kv_depth"]) == ("exact", cached(before))
    assert report["cache"]["tier"]
    timing = report["timing"]
    assert 0 <= timing["queued_ms"] <= timing["first_token_ms"] <= timing["total_ms"]


def test_a_hit_changes_nothing_but_the_time(server: Live) -> None:
    first, again = server.complete(LONG), server.complete(LONG)
    assert (cached(first), cached(again) > 0) == (0, True)
    assert first.choices[0].text == again.choices[0].text


def test_tenants_never_share(server: Live) -> None:
    salts: list[dict[str, str]] = [{"cache_salt": "a"}, {"cache_salt": "b"}, {}]
    for salt in salts:
        answer = server.complete(LONG, extra_body=salt)
        assert cached(answer) == 0
        assert reason(answer).startswith("miss: no cached prompt of this tenant")
    for salt in salts:
        assert cached(server.complete(LONG, extra_body=salt)) > 0


def test_use_cache_false_takes_and_leaves_nothing(server: Live) -> None:
    aside = {"use_cache": False}
    server.complete(LONG, extra_body=aside)
    assert cached(server.complete(LONG)) == 0
    answer = server.complete(LONG, extra_body=aside)
    assert (cached(answer), reason(answer)) == (0, "miss: the request asked not to use the cache")


def test_evicted_state_is_named(server: Live) -> None:
    server.complete(LONG)
    # as many prompts of its length as there are slots: the first one's states go, its rows may stay
    for number in range(server.on_engine(lambda core: core.cache.tiers.native.pool.num_slots)):
        server.complete(f"{number} {LONG}", max_tokens=1)
    answer = server.complete(LONG)
    assert cached(answer) == 0
    assert "but no checkpoint of the state" in reason(answer)
    assert answer.model_extra["holdover"]["cache"]["kv_depth"] > 0
