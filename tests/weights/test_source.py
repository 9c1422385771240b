import json
import logging
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest

from holdover.errors import ConfigError, WeightsError
from holdover.weights.source import load_config, resolve, tokenizer_folder
from tests.weights.conftest import CONFIG, INDEX


def test_a_sharded_directory(model: Path) -> None:
    files = resolve(str(model))
    assert files.path == model
    assert files.config == CONFIG
    assert [file.name for file in files.weights] == [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert all(file.size == (model / file.name).stat().st_size for file in files.weights)
    assert files.weight_map is not None
    assert files.weight_map["b.mask"] == "model-00002-of-00002.safetensors"
    assert files.revision == "local"


def test_a_single_file_is_preferred_to_stray_ones(model: Path) -> None:
    (model / INDEX).unlink()
    assert len(resolve(str(model)).weights) == 2
    (model / "model-00001-of-00002.safetensors").rename(model / "model.safetensors")
    files = resolve(str(model))
    assert [file.name for file in files.weights] == ["model.safetensors"]
    assert files.weight_map is None


def test_files_beside_the_index_are_left_out(model: Path) -> None:
    (model / "consolidated.safetensors").write_bytes(b"")
    assert len(resolve(str(model)).weights) == 2


def test_no_config(tmp_path: Path) -> None:
    for load in (resolve, load_config):
        with pytest.raises(WeightsError, match=r"has no config\.json"):
            load(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"", "not valid JSON"),
        (b'{"a": "\xff"}', r"not valid UTF-8 \(byte 7\)"),
        (b"[]", "it holds list; wanted an object"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_config(model: Path, content: bytes, message: str) -> None:
    (model / "config.json").write_bytes(content)
    for load in (resolve, load_config):
        with pytest.raises(ConfigError, match=message) as raised:
            load(str(model))
        assert str(model / "config.json") in str(raised.value)


def test_config_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(WeightsError, match="cannot be read"):
        load_config(str(tmp_path))


def test_no_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WeightsError, match="has no weights"):
        resolve(str(tmp_path))
    assert load_config(str(tmp_path)) == {}


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickle_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"\x80")
    with pytest.raises(WeightsError, match=rf"pickled weights \({name}\).*convert them to safetensors"):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "not valid JSON"),
        ("{}", "has no weight_map"),
        ('{"weight_map": []}', "has no weight_map"),
        ('{"weight_map": {"a": "../a.safetensors"}}', "of the same directory"),
        ('{"weight_map": {"a": "a.bin"}}', "of the same directory"),
        ('{"weight_map": {"a": 3}}', "of the same directory"),
    ],
)
def test_bad_index(model: Path, index: str, message: str) -> None:
    (model / INDEX).write_text(index)
    with pytest.raises(WeightsError, match=message):
        resolve(str(model))


def test_load_config_takes_a_file(model: Path) -> None:
    other = model / "other.json"
    other.write_text(json.dumps({"b": 1}))
    assert load_config(str(other)) == {"b": 1}
    assert load_config(str(model)) == CONFIG


@pytest.mark.parametrize("error", [OSError("no\nnetwork"), ValueError("bad id"), RuntimeError("client closed")])
def test_neither_directory_nor_hub(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*args: object, **kwargs: object) -> str:
        assert logging.getLogger("huggingface_hub").level == logging.ERROR
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    level = logging.getLogger("huggingface_hub").level
    for load in (resolve, load_config):
        with pytest.raises(WeightsError, match="no directory 'who/what' exists, and the hub could not") as raised:
            load("who/what")
        assert " ".join(str(error).split()) in str(raised.value)
        assert "\n" not in str(raised.value)
    assert logging.getLogger("huggingface_hub").level == level


def test_an_absent_path(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no directory"):
        resolve(str(tmp_path / "absent"))


@pytest.mark.parametrize("name", ["x" * 300, "~nobody-of-that-name/model"])
def test_names_that_cannot_be_looked_for(name: str) -> None:
    with pytest.raises(WeightsError, match="cannot be looked for"):
        load_config(name)


def test_without_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(WeightsError, match="huggingface_hub is not installed"):
        resolve("who/what")


def test_from_the_hub(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    snapshot = model.rename(model.parent / "0123abcd")
    asked = {}

    def download(**kwargs: object) -> str:
        asked.update(kwargs)
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    files = resolve("who/what")
    assert files.revision == "0123abcd"
    assert asked["repo_id"] == "who/what"
    assert "*.safetensors" in asked["allow_patterns"]
    assert not any("bin" in pattern for pattern in asked["allow_patterns"])
    assert tokenizer_folder("who/what") == snapshot
    assert {"*.json", "*.jinja"} <= set(asked["allow_patterns"])
    assert "*.safetensors" not in asked["allow_patterns"]
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repo_id, filename: str(snapshot / filename))
    assert load_config("who/what") == CONFIG


def test_modules_of_the_hubs_client_are_imported_where_they_are_no_attributes_yet() -> None:
    # in a process that has imported nothing of the client: a name that the hub cannot have is refused by the client
    code = (
        "from holdover.errors import WeightsError\n"
        "from holdover.weights.source import open_files\n"
        "try:\n    open_files('no//such-model')\nexcept WeightsError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no//such-model" in done.stdout
    assert "attribute" not in done.stdout
