"""The cache over HTTP: what it holds, in pages; pins that stay; flush; and refusals that change nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdover.prefix.listing import entries
from holdover.server.auth import Keys
from holdover.server.options import ServerOptions
from tests.server.live import Live, running
from tests.server.test_cache import LONG, cached
from tests.server.test_errors import error_of

ENTRIES, FLUSH, PINS = "/v1/cache/entries", "/v1/cache/flush", "/v1/cache/pins"


@pytest.fixture
def clean(server: Live) -> Iterator[Live]:
    yield server
    server.http.delete(PINS)


def pinned(server: Live, **body: Any) -> dict[str, Any]:
    response = server.http.post(PINS, json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def listed(server: Live, **query: Any) -> dict[str, Any]:
    response = server.http.get(ENTRIES, params=query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def press(server: Live) -> None:
    """More prompts than there are slots."""
    for number in range(server.on_engine(lambda core: core.cache.tiers.native.pool.num_slots) + 2):
        server.complete(f"{number} cats", max_tokens=1)


def test_entries_are_what_the_cache_holds(clean: Live) -> None:
    clean.complete(LONG)
    clean.complete(LONG)
    clean.complete("the dog", extra_body={"cache_salt": "a"})
    found = listed(clean)
    held = clean.on_engine(lambda core: entries(core.cache))
    assert found["total"] == len(found["data"]) == len(held) > 2
    assert {one["id"] for one in found["data"]} == {one.key.hex()[:16] for one in held}
    assert len({one["tenant"] for one in found["data"]}) == 2
    assert sum(one["hits"] for one in found["data"]) == 1
    size = clean.engine.engine.loaded.host.layout.state.checkpoint_bytes
    for one in found["data"]:
        assert (one["tier"], one["lineage"], one["bytes"]) == ("native", "exact", size)
        assert (one["pinned"], one["spilled"]) == (False, False)
        assert one["age_s"] >= 0
    assert [one["depth"] for one in found["data"]] == sorted(one["depth"] for one in found["data"])


def test_pages_are_the_whole(clean: Live) -> None:
    for number in range(5):
        clean.complete(f"{number} cats")
    whole = listed(clean)["data"]
    assert len(whole) >= 5
    found, after = [], {}
    while True:
        page = listed(clean, limit=2, **after)
        assert 1 <= len(page["data"]) <= 2
        found += page["data"]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert [one["id"] for one in found] == [one["id"] for one in whole]
    # the place of one that is gone is a place still
    clean.http.post(FLUSH)
    assert listed(clean, **after) == {"object": "list", "data": [], "total": 0, "next": None}


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 1001}, {"limit": "x"}, {"after": "x"}, {"offset": 3}])
def test_bad_pages(server: Live, query: dict[str, Any]) -> None:
    response = server.http.get(ENTRIES, params=query)
    assert (response.status_code, error_of(response)["param"]) == (400, next(iter(query)))


def test_pinned_text_stays(clean: Live) -> None:
    ids = clean.engine.engine.loaded.tokenizer.encode(LONG)
    # nothing of it is cached: it is computed
    pin = pinned(clean, text=LONG)
    assert (pin["object"], pin["depth"]) == ("cache.pin", len(ids))
    assert pinned(clean, tokens=ids) == pin
    assert clean.http.get(PINS).json()["data"] == [pin]
    press(clean)
    clean.http.post(FLUSH)
    assert [(one["id"], one["pinned"]) for one in listed(clean)["data"]] == [(pin["id"], True)]
    assert cached(clean.complete([*ids, 5, 6])) == len(ids)
    deleted = clean.http.delete(f"{PINS}/{pin['id']}")
    assert deleted.json() == {"object": "cache.pin", "id": pin["id"], "deleted": True}
    assert clean.http.post(FLUSH).json()["checkpoints"] >= 1
    assert cached(clean.complete([*ids, 5, 6])) == 0


@pytest.mark.parametrize("roles", [["system"], ["system", "user"], ["user", "assistant"]])
def test_pinned_messages_are_where_every_next_turn_resumes(clean: Live, roles: list[str]) -> None:
    messages = [{"role": role, "content": f"{role} said {LONG}"[:300]} for role in roles]
    pin = pinned(clean, messages=messages)
    for content in ("and then?", "7"):
        clean.http.post(FLUSH)
        reply = [{"role": "assistant", "content": content}] if roles[-1] == "user" else []
        assert cached(clean.chat([*messages, *reply, {"role": "user", "content": content}])) == pin["depth"]


def test_pins_are_a_tenant_s(clean: Live) -> None:
    ids = clean.engine.engine.loaded.tokenizer.encode(LONG)
    pinned(clean, tokens=ids, cache_salt="a")
    assert cached(clean.complete([*ids, 5])) == 0
    assert cached(clean.complete([*ids, 5], extra_body={"cache_salt": "a"})) == len(ids)


def test_pins_beyond_half_of_a_budget(model: Path) -> None:
    with running(model, native_slots=4, max_running=1, kv_budget=2**18) as server:
        before = [pinned(server, text=text) for text in ("the cat", "the dog")]
        response = server.http.post(PINS, json={"text": "the mat"})
        assert (response.status_code, error_of(response)["code"]) == (400, "pin_budget_exceeded")
        assert "2 of 4 native state slots are pinned" in error_of(response)["message"]
        rows = server.on_engine(lambda core: core.cache.kv.num_rows)
        assert server.http.get(PINS).json()["data"] == before
        assert server.http.delete(PINS).json() == {"object": "cache.pins", "deleted": 2}
        response = server.http.post(PINS, json={"tokens": [5] * (rows // 2 + 1)})
        assert (response.status_code, error_of(response)["code"]) == (400, "pin_budget_exceeded")
        assert "KV rows" in error_of(response)["message"]
        assert server.complete("the cat").choices[0].text
        server.check()


def test_a_request_that_pins_leave_no_rows_for_is_refused(model: Path) -> None:
    with running(model, kv_budget=2**18) as server:
        rows = server.on_engine(lambda core: core.cache.kv.num_rows)
        pinned(server, tokens=[5] * (rows // 2))
        response = server.http.post(
            "/v1/completions", json={"model": "tiny-gdn", "prompt": [6] * (rows // 2 + 1), "max_tokens": 1}
        )
        assert (response.status_code, error_of(response)["code"]) == (503, "no_capacity")
        assert f"pins hold {rows // 2} of {rows} KV rows" in error_of(response)["message"]
        assert response.headers["retry-after"] == "1"
        assert server.complete([6] * 8, max_tokens=2).choices[0].text
        # what begins with the pinned prefix shares its rows, and may fill all the others
        left = server.engine.engine.prepare.max_context - rows // 2 - 1
        whole = server.complete([*[5] * (rows // 2), 6], max_tokens=left, extra_body={"ignore_eos": True})
        assert whole.usage.completion_tokens == left
        server.http.delete(PINS)
        assert server.complete([6] * (rows // 2 + 1), max_tokens=1).choices[0].text
        server.check()


def test_an_answer_without_a_limit_ends_where_pins_leave_no_room(model: Path) -> None:
    with running(model, kv_budget=2**18) as server:
        rows = server.on_engine(lambda core: core.cache.kv.num_rows)
        pinned(server, tokens=[5] * (rows // 2))
        answer = server.chat("the cat", max_tokens=None, extra_body={"ignore_eos": True})
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.total_tokens == rows - rows // 2 + 1
        server.http.delete(PINS)
        server.check()


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({}, "one of tokens, text and messages"),
        ({"text": "a", "tokens": [5]}, "one of tokens, text and messages"),
        ({"text": ""}, "text"),
        ({"tokens": []}, "tokens"),
        ({"tokens": [10**30]}, "tokens holds token"),
        ({"tokens": [5] * 2000}, "tokens gives 2000 tokens: a prefix has 1 to 1024, this server's context"),
        ({"text": "\n" * 2000}, "text gives 2000 tokens"),
        ({"messages": [{"role": "user", "content": "\n" * 2000}]}, "messages gives 20"),
        ({"tokens": ["a"]}, "integer"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "role"),
        ({"txt": "a"}, "unknown field: txt"),
    ],
)
def test_bad_pins(server: Live, body: dict[str, Any], part: str) -> None:
    response = server.http.post(PINS, json=body)
    assert response.status_code == 400
    assert part in error_of(response)["message"]
    assert server.http.get(PINS).json()["data"] == []


@pytest.mark.parametrize("pin", ["0" * 16, "0", "", "x" * 16, "0" * 200])
def test_unknown_pins(server: Live, pin: str) -> None:
    assert server.http.delete(f"{PINS}/{pin}").status_code == 404


def test_all_of_it_is_behind_the_key(model: Path) -> None:
    with (
        running(model, ServerOptions(Keys(["mine"])), key="mine") as server,
        httpx.Client(base_url=server.url) as other,
    ):
        pin = pinned(server, text="the cat")
        for method, path in [("GET", ENTRIES), ("GET", PINS), ("POST", PINS), ("POST", FLUSH), ("DELETE", PINS)]:
            assert other.request(method, path, json={"text": "a"}).status_code == 401
        assert other.delete(f"{PINS}/{pin['id']}").status_code == 401
        assert server.http.get(PINS).json()["data"] == [pin]
