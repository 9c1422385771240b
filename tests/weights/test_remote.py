import json
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from holdover.errors import ConfigError, WeightsError
from holdover.weights import http
from holdover.weights.check import check_files
from holdover.weights.header import read_headers
from holdover.weights.read import read_tensors
from holdover.weights.remote import HEAD_BYTES
from holdover.weights.source import load_config, open_files, resolve
from tests.weights.conftest import CONFIG, INDEX, tensors
from tests.weights.server import COMMIT, Served, serve
from tests.weights.test_read import ALL, same

FIRST, SECOND = tensors()


@pytest.fixture
def served(model: Path) -> Iterator[Served]:
    with serve(model) as server:
        yield server


@pytest.fixture
def hub(served: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """The hub's client, pointed at the server."""
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", served.url)
    template = f"{served.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    return served


@pytest.mark.parametrize("slash", ["", "/"])
def test_the_same_as_local(model: Path, served: Served, slash: str) -> None:
    local, remote = resolve(str(model)), open_files(served.url + slash)
    assert (remote.config, remote.weight_map) == (local.config, local.weight_map)
    assert [(file.name, file.size) for file in remote.weights] == [(file.name, file.size) for file in local.weights]
    assert check_files(remote) == read_headers(local)
    read = read_tensors(remote, ALL)
    assert list(read) == list(ALL)
    assert all(same(read[name], ALL[name]) for name in ALL)
    assert load_config(served.url + slash) == CONFIG
    with pytest.raises(WeightsError, match="opened for its headers only"):
        assert remote.path


def test_a_local_model_is_opened_as_it_is_resolved(model: Path) -> None:
    assert open_files(str(model)) == resolve(str(model))
    assert open_files("tiny-gdn").path == resolve("tiny-gdn").path


def test_opening_reads_one_head_a_file(model: Path, served: Served) -> None:
    files = open_files(served.url)
    metadata = (model / "config.json").stat().st_size + (model / INDEX).stat().st_size
    assert served.sent == metadata + sum(min(HEAD_BYTES, file.size) for file in files.weights)
    before = served.sent
    read_headers(files)
    read_tensors(files, ["a.empty"])
    assert served.sent == before
    # most of it lies behind the head
    read_tensors(files, ["a.weight"])
    assert 0 < served.sent - before <= ALL["a.weight"].nbytes


def test_a_header_longer_than_the_head(model: Path, served: Served) -> None:
    path = model / FIRST
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    padded = data[8 : 8 + length] + b" " * (2 * HEAD_BYTES)
    path.write_bytes(len(padded).to_bytes(8, "little") + padded + data[8 + length :])
    files = open_files(served.url)
    before = served.sent
    headers = check_files(files)
    assert headers[FIRST].raw == padded
    assert served.sent - before == 8 + len(padded) - HEAD_BYTES
    assert same(read_tensors(files, ["a.A_log"], headers=headers)["a.A_log"], ALL["a.A_log"])


def test_a_single_file_without_an_index(model: Path, served: Served) -> None:
    (model / INDEX).unlink()
    with pytest.raises(WeightsError, match=r"model\.safetensors: there is no such file \(404\)"):
        open_files(served.url)
    (model / FIRST).rename(model / "model.safetensors")
    files = open_files(served.url)
    assert ([file.name for file in files.weights], files.weight_map) == (["model.safetensors"], None)


def test_bad_json(model: Path, served: Served) -> None:
    (model / INDEX).write_text('{"weight_map": {"a": "../a.safetensors"}}')
    with pytest.raises(WeightsError, match="of the same directory"):
        open_files(served.url)
    (model / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match=rf"{served.url}/config\.json is not usable: it holds list"):
        open_files(served.url)


def test_a_server_that_ignores_ranges(served: Served) -> None:
    served.ignore_ranges = True
    with pytest.raises(WeightsError, match="the server ignores ranges"):
        open_files(served.url)


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "wants a token"), (403, "permissions"), (404, "no such file"), (418, "status 418; wanted 206")],
)
def test_refused(served: Served, status: int, message: str) -> None:
    served.statuses = [status]
    with pytest.raises(WeightsError, match=message) as raised:
        open_files(served.url)
    assert f"{served.url}/{FIRST}" in str(raised.value)


def test_another_range_than_the_one_asked_for(served: Served) -> None:
    served.shift = 1
    with pytest.raises(WeightsError, match=r"answers with range 'bytes 1-\d+/\d+'; wanted \d+ bytes from 0"):
        open_files(served.url)


@pytest.mark.parametrize(("honest", "message"), [(False, "the answer broke off after"), (True, "truncated on the way")])
def test_a_body_that_is_too_short(served: Served, honest: bool, message: str) -> None:
    files = open_files(served.url)
    served.cut, served.honest = 10, honest
    with pytest.raises(WeightsError, match=message):
        read_tensors(files, ["a.weight"])


def test_a_busy_server_is_asked_again(served: Served) -> None:
    served.statuses = [503]
    assert len(open_files(served.url).weights) == 2
    assert [path for _, path, _, _ in served.requests].count(f"/{FIRST}") == 2


@pytest.mark.parametrize("data", [b"", b"1234"])
def test_a_truncated_file(model: Path, served: Served, data: bytes) -> None:
    (model / FIRST).write_bytes(data)
    with pytest.raises(WeightsError, match="truncated or empty"):
        check_files(open_files(served.url))


def test_a_file_that_changes_meanwhile(model: Path, served: Served) -> None:
    files = open_files(served.url)
    path = model / FIRST
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(WeightsError, match="it changes while it is read"):
        read_tensors(files, ["a.weight"])


def test_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_RETRIES", 0)
    # nothing listens on the port that no one may use
    with pytest.raises(WeightsError, match=r"http://127\.0\.0\.1:1/config\.json cannot be read"):
        open_files("http://127.0.0.1:1")


def test_an_address_is_not_loaded(served: Served) -> None:
    with pytest.raises(WeightsError, match="download it to load it"):
        resolve(served.url)


def test_no_token_is_sent_to_an_address(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    open_files(served.url)
    assert {authorization for *_, authorization in served.requests} == {None}


def test_a_hub_id_is_read_at_one_commit_with_the_token(model: Path, hub: Served) -> None:
    hub.secret = "hf_secret"
    files = open_files("who/what")
    assert files.revision == COMMIT
    assert read_tensors(files, ["b.dt_bias"])["b.dt_bias"].equal(ALL["b.dt_bias"])
    paths = [path for _, path, _, _ in hub.requests]
    assert paths[0] == "/who/what/resolve/main/config.json"
    assert all(path.startswith(f"/who/what/resolve/{COMMIT}/") for path in paths[1:])
    assert json.loads((model / "config.json").read_text()) == files.config


def test_a_hub_id_that_is_none(hub: Served, model: Path) -> None:
    (model / "config.json").unlink()
    for name in ("who/what", "not a name", "a/b/c"):
        with pytest.raises(WeightsError, match=f"no directory '{name}' exists, and the hub could not") as raised:
            open_files(name)
        assert "\n" not in str(raised.value)


def test_offline_the_cache_is_used(hub: Served, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda **kwargs: str(model))
    assert open_files("who/what").path == model
    assert hub.requests == []
