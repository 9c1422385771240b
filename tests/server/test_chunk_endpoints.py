"""Chunks over HTTP: what is kept, in pages; building; removing; and prefilling again to compare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from holdover.chunks import ChunkOptions
from holdover.chunks.listing import listed
from holdover.engine.chunks.settings import ChunkSettings
from holdover.engine.core import EngineCore
from holdover.server.auth import Keys
from holdover.server.options import ServerOptions
from tests.server.live import Live, running
from tests.server.test_errors import error_of

CHUNKS = "/v1/chunks"
EXTRAS = ChunkOptions(transitions=True, bodies=True, inputs=True)


@pytest.fixture(scope="module")
def live(model: Path) -> Iterator[Live]:
    with running(model, chunks=ChunkSettings(tokens=16, extras=EXTRAS)) as found:
        yield found


@pytest.fixture
def clean(live: Live) -> Iterator[Live]:
    yield live
    live.on_engine(lambda core: core.chunks.store.flush())
    live.check()


def added(server: Live, **body: Any) -> dict[str, Any]:
    response = server.http.post(CHUNKS, json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def kept(server: Live, **query: Any) -> dict[str, Any]:
    response = server.http.get(CHUNKS, params=query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def verified(server: Live, chunk_id: str) -> dict[str, Any]:
    response = server.http.post(f"{CHUNKS}/{chunk_id}/verify")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def refusal(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    return error_of(response)


def test_a_document_is_cut_and_built_once(clean: Live) -> None:
    first = added(clean, tokens=[5 + i % 7 for i in range(40)])
    assert [one["tokens"] for one in first["data"]] == [16, 16, 8]
    assert first["built"] == 3
    again = added(clean, tokens=[5 + i % 7 for i in range(40)])
    assert (again["built"], [one["id"] for one in again["data"]]) == (0, [one["id"] for one in first["data"]])
    assert kept(clean)["total"] == 3
    assert added(clean, text="the cat sat")["built"] == 1


def test_the_list_is_what_the_store_holds(clean: Live) -> None:
    added(clean, tokens=[5, 6, 7])
    added(clean, tokens=[5, 6, 7], cache_salt="a")
    found = kept(clean)["data"]
    held = clean.on_engine(lambda core: listed(core.chunks.store))
    assert len(found) == len(held) == 2
    assert len({one["id"] for one in found}) == len({one["tenant"] for one in found}) == 2
    assert {one["bytes"] for one in found} == {one.nbytes for one in held}
    state, kv = clean.on_engine(lambda core: (core.runner.slots.layout, core.runner.kv.layout))
    extras = clean.on_engine(lambda core: core.chunks.store.extra_bytes)
    assert sum(one["bytes"] for one in found) == 2 * (state.checkpoint_bytes + 3 * kv.bytes_per_token) + extras
    one = found[0]
    assert (one["object"], one["tokens"], one["tier"], one["hits"], one["in_use"]) == ("chunk", 3, "native", 0, False)
    assert one["extras"] == ["transitions", "bodies", "inputs"]
    # as the list of checkpoints names tenants
    clean.complete([5, 6, 7, 8])
    tenants = {entry["tenant"] for entry in clean.http.get("/v1/cache/entries").json()["data"]}
    assert tenants & {one["tenant"] for one in found}


def test_pages(clean: Live) -> None:
    for count in (3, 3, 5, 9):
        added(clean, tokens=[5 + count, *range(6, 5 + count)], cache_salt=str(kept(clean)["total"]))
    whole = kept(clean)
    assert (whole["total"], whole["next"]) == (4, None)
    assert [one["tokens"] for one in whole["data"]] == [3, 3, 5, 9]
    pages, after = [], None
    while True:
        page = kept(clean, limit=1, **({} if after is None else {"after": after}))
        pages += [one["id"] for one in page["data"]]
        if (after := page["next"]) is None:
            break
    assert pages == [one["id"] for one in whole["data"]]


def test_removing(clean: Live) -> None:
    ids = [one["id"] for one in added(clean, tokens=list(range(5, 30)))["data"]]
    assert clean.http.delete(f"{CHUNKS}/{ids[0]}").json() == {"object": "chunk", "id": ids[0], "deleted": True}
    assert [one["id"] for one in kept(clean)["data"]] == ids[1:]
    assert refusal(clean.http.delete(f"{CHUNKS}/{ids[0]}"), 404)["code"] == "chunk_not_found"
    hold = clean.on_engine(lambda core: core.chunks.store.hold(list(core.chunks.store.entries.values())))
    try:
        assert kept(clean)["data"][0]["in_use"]
        assert refusal(clean.http.delete(f"{CHUNKS}/{ids[1]}"), 409)["code"] == "chunk_in_use"
    finally:
        clean.on_engine(lambda core: core.chunks.store.release(hold))


def test_what_is_kept_is_what_a_prefill_gives(clean: Live) -> None:
    (one,) = added(clean, tokens=list(range(5, 20)))["data"]
    verdict = verified(clean, one["id"])
    assert verdict["same"]
    names = ["keys", "values", "temporal", "conv", "transitions", "bodies", "inputs"]
    assert [part["name"] for part in verdict["parts"]] == names
    assert all(part["same"] and part["error"] == 0 for part in verdict["parts"])
    # nothing is left of the second prefill, and verifying is no use
    assert [found["id"] for found in kept(clean)["data"]] == [one["id"]]
    assert kept(clean)["data"][0]["hits"] == 0


def damage(part: str):
    """Change one part of the only chunk."""

    @torch.inference_mode()
    def change(core: EngineCore) -> None:
        (entry,) = core.chunks.store.entries.values()
        pool, (keys, values) = core.runner.slots, core.runner.kv.planes(1)
        if part in ("keys", "values"):
            plane = keys if part == "keys" else values
            plane[entry.rows[-1]] *= 1.01
        elif part in ("temporal", "conv"):
            state = getattr(pool, part)(0)[entry.checkpoint.slot]
            state[-1] += state[-1].abs().mean()
        else:
            tensors = getattr(entry.extras, part)[0]
            (tensors.offset if part == "bodies" else tensors).fill_(float("nan"))

    return change


@pytest.mark.parametrize("part", ["keys", "values", "temporal", "conv", "transitions", "bodies", "inputs"])
def test_what_was_damaged_is_named(clean: Live, part: str) -> None:
    (one,) = added(clean, tokens=list(range(5, 20)))["data"]
    clean.on_engine(damage(part))
    verdict = verified(clean, one["id"])
    assert not verdict["same"]
    assert [found["name"] for found in verdict["parts"] if not found["same"]] == [part]
    (error,) = (found["error"] for found in verdict["parts"] if found["name"] == part)
    # what is no number has no size
    assert (error is None) == (part in ("transitions", "bodies", "inputs"))


@pytest.mark.parametrize("element", ["int8", "bfloat16"])
def test_packed_states_are_compared_as_they_were_packed(model: Path, element: str) -> None:
    with running(model, element=element) as live:
        (one,) = added(live, tokens=list(range(5, 20)))["data"]
        # a step lets the state go down
        live.complete("the cat", max_tokens=2)
        assert kept(live)["data"][0]["tier"] == "compressed"
        assert verified(live, one["id"])["same"]
        live.on_engine(lambda core: core.cache.tiers.packed.pool.records.fill_(0))
        assert not verified(live, one["id"])["same"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": "a", "tokens": [5]}, "text"),
        ({"text": ""}, "text"),
        ({"tokens": []}, "tokens"),
        ({"tokens": [10**6]}, "context"),
        ({"tokens": ["a"]}, "tokens.0"),
        ({"text": "a", "more": 1}, "more"),
    ],
)
def test_documents_that_cannot_be(clean: Live, body: dict[str, Any], param: str) -> None:
    assert refusal(clean.http.post(CHUNKS, json=body), 400)["param"] == param
    assert kept(clean)["total"] == 0


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": "x"}, {"after": "x"}, {"more": 1}])
def test_pages_that_cannot_be(clean: Live, query: dict[str, Any]) -> None:
    refusal(clean.http.get(CHUNKS, params=query), 400)


def test_chunks_that_are_not_there(clean: Live) -> None:
    for chunk_id in ("0" * 16, "x", "0" * 15):
        assert refusal(clean.http.post(f"{CHUNKS}/{chunk_id}/verify"), 404)["code"] == "chunk_not_found"


def test_a_key_is_needed(model: Path) -> None:
    with running(model, ServerOptions(Keys(["mine"])), key="other") as live:
        for method, path in (("GET", ""), ("POST", ""), ("DELETE", "/" + "0" * 16), ("POST", f"/{'0' * 16}/verify")):
            refusal(live.http.request(method, CHUNKS + path), 401)


def test_no_room(model: Path) -> None:
    with running(model, chunks=ChunkSettings(rows=8)) as live:
        assert refusal(live.http.post(CHUNKS, json={"tokens": list(range(5, 15))}), 503)["code"] == "no_capacity"
        live.check()
