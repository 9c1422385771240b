"""``holdover cache`` against a running server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdover.server.auth import Keys
from holdover.server.options import ServerOptions
from tests.cli.run import error_line, invoke
from tests.server.live import Live, running


@pytest.fixture(scope="module")
def live(model: Path) -> Iterator[Live]:
    with running(model, ServerOptions(Keys(["mine", "other"])), key="mine") as found:
        yield found


@pytest.fixture
def server(live: Live) -> Iterator[Live]:
    yield live
    live.http.delete("/v1/cache/pins")
    live.flush()
    live.check()


def cache(server: Live, *arguments: str, data: str | None = None) -> str:
    result = invoke("cache", *arguments, data=data, HOLDOVER_URL=server.url, HOLDOVER_API_KEY="mine other")
    assert result.exit_code == 0, result.stderr
    text: str = result.stdout
    return text


def entries(server: Live) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(cache(server, "ls", "--json"))
    return found


def test_list_and_flush(server: Live) -> None:
    server.complete("the cat sat on the mat " * 20)
    found = entries(server)
    assert len(found) >= 2
    lines = cache(server, "ls").splitlines()
    assert lines[0].split()[:2] == ["id", "tenant"]
    assert [line.split()[0] for line in lines[1:-1]] == [one["id"] for one in found]
    assert lines[-1].startswith(f"{len(found)} checkpoints, ")
    assert cache(server, "flush") == f"dropped {len(found)} checkpoints\n"
    assert entries(server) == []


def test_more_entries_than_a_page(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        server.complete(f"{number} cats")
    whole = [one["id"] for one in entries(server)]
    monkeypatch.setattr("holdover.cli.client._PAGE", 1)
    assert [one["id"] for one in entries(server)] == whole


def test_pin_and_unpin(server: Live, tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "be brief"}]
    file = tmp_path / "messages.json"
    file.write_text(json.dumps(messages))
    pins = [
        cache(server, "pin", "the cat sat"),
        cache(server, "pin", "-", data="the dog sat"),
        cache(server, "pin", "--tokens", "5, 6 7"),
        cache(server, "pin", "--messages", str(file), "--salt", "a"),
        cache(server, "pin", "--messages", "-", data=json.dumps(messages)),
    ]
    ids = [line.split()[1].rstrip(":") for line in pins]
    assert pins[2] == f"pinned {ids[2]}: 3 tokens\n"
    cache(server, "flush")
    assert {one["id"] for one in entries(server) if one["pinned"]} == {one["id"] for one in entries(server)} == set(ids)
    assert "pinned" in cache(server, "ls")
    assert cache(server, "unpin", ids[0]) == f"unpinned {ids[0]}\n"
    assert cache(server, "unpin", "--all") == "unpinned 4 prefixes\n"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("unpin", "0" * 16), "no pin has the id"),
        (("unpin",), "give the ID of a pin, or --all"),
        (("unpin", "x", "--all"), "give the ID of a pin, or --all"),
        (("pin",), "one of TEXT, --tokens and --messages"),
        (("pin", "a", "--tokens", "5"), "one of TEXT, --tokens and --messages"),
        (("pin", "--tokens", "5,a"), "whole numbers"),
        (("pin", "--tokens", "99999999"), "vocabulary"),
        (("pin", "--messages", "/no/such/file"), "cannot be read as JSON"),
        (("ls", "--api-key", "wrong"), "API key"),
        (("ls", "--url", "http://127.0.0.1:9"), "is the server running?"),
        (("ls", "--url", "file:///etc/passwd"), "is no address of a server"),
        (("ls", "--url", "nonsense"), "is no address of a server"),
    ],
)
def test_refusals_are_one_line(server: Live, arguments: tuple[str, ...], part: str) -> None:
    result = invoke("cache", *arguments, HOLDOVER_URL=server.url, HOLDOVER_API_KEY="mine")
    assert result.exit_code == 2
    assert part in error_line(result.stderr)
