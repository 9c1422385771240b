"""``holdover chunks`` against a running server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdover.engine.chunks.settings import ChunkSettings
from holdover.server.auth import Keys
from holdover.server.options import ServerOptions
from tests.cli.run import error_line, invoke
from tests.server.live import Live, running


@pytest.fixture(scope="module")
def live(model: Path) -> Iterator[Live]:
    with running(model, ServerOptions(Keys(["mine"])), key="mine", chunks=ChunkSettings(tokens=16)) as found:
        yield found


@pytest.fixture
def server(live: Live) -> Iterator[Live]:
    yield live
    live.on_engine(lambda core: core.chunks.store.flush())
    live.check()


def run(server: Live, *arguments: str, data: str | None = None) -> Any:
    return invoke("chunks", *arguments, data=data, HOLDOVER_URL=server.url, HOLDOVER_API_KEY="mine")


def chunks(server: Live, *arguments: str, data: str | None = None) -> str:
    result = run(server, *arguments, data=data)
    assert result.exit_code == 0, result.stderr
    text: str = result.stdout
    return text


def listed(server: Live) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(chunks(server, "list", "--json"))
    return found


def test_add_list_and_remove(server: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "document.txt"
    file.write_text("the cat sat on the mat " * 4)
    lines = chunks(server, "add", str(file), "-", "--tokens", "5, 6 7", data="the dog").splitlines()
    heads = [line for line in lines if not line.startswith("  ")]
    assert [line.split(":")[0] for line in heads] == [str(file), "-", "tokens"]
    assert heads[2] == "tokens: 3 tokens in 1 chunks, 1 built"
    found = listed(server)
    assert {line.split(":")[0].strip() for line in lines if line.startswith("  ")} == {one["id"] for one in found}
    assert chunks(server, "add", "--tokens", "5,6,7").startswith("tokens: 3 tokens in 1 chunks, 0 built")
    chunks(server, "add", "--tokens", "5,6,7", "--salt", "a")
    assert len(listed(server)) == len(found) + 1
    table = chunks(server, "list").splitlines()
    assert table[0].split()[:3] == ["id", "tenant", "tier"]
    assert [line.split()[0] for line in table[1:-1]] == [one["id"] for one in listed(server)]
    assert table[-1].startswith(f"{len(found) + 1} chunks, ")
    monkeypatch.setattr("holdover.cli.client._PAGE", 1)
    ids = [one["id"] for one in listed(server)]
    assert len(ids) == len(found) + 1
    assert chunks(server, "rm", *ids) == "".join(f"removed {one}\n" for one in ids)
    assert listed(server) == []


def test_verify(server: Live) -> None:
    chunks(server, "add", "--tokens", "5,6,7")
    chunks(server, "add", "--tokens", "5,6,7,8")
    short, long = (one["id"] for one in listed(server))
    assert [line.split(";")[0] for line in chunks(server, "verify").splitlines()] == [f"{short}: same", f"{long}: same"]

    def damage(core: Any) -> None:
        entry = next(one for one in core.chunks.store.entries.values() if len(one) == 4)
        core.runner.slots.temporal(0)[entry.checkpoint.slot].zero_()

    server.on_engine(damage)
    result = run(server, "verify")
    assert result.exit_code == 1
    assert f"{short}: same" in result.stdout
    assert f"{long}: DIFFERS; largest relative errors: keys 0, values 0, temporal 1, conv 0" in result.stdout
    assert run(server, "verify", short).exit_code == 0
    assert run(server, "verify", long).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("add",), "give files of text, - for standard input, or --tokens"),
        (("add", "/no/such/file"), "cannot be read as text"),
        (("add", "--tokens", "a"), "whole numbers"),
        (("rm", "0" * 16), "no chunk has the id"),
        (("verify", "0" * 16), "no chunk has the id"),
        (("list", "--url", "nonsense"), "is no address of a server"),
    ],
)
def test_refusals_are_one_line(server: Live, arguments: tuple[str, ...], part: str) -> None:
    result = run(server, *arguments)
    assert result.exit_code == 2
    assert part in error_line(result.stderr)
