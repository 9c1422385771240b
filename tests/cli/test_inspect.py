import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from holdover.arch.layout import KVLayout, ModelLayout, RecurrentLayer, StateLayout
from holdover.cli.inspect import as_dict, register
from tests.arch.fixtures import CONFIGS, published

KIMI = str(CONFIGS / "kimi-linear-48b-a3b.json")


def run(*arguments: str, **environment: str) -> Any:
    app = typer.Typer()
    register(app)
    # a second command, so that the first keeps its name
    app.command("other")(lambda: None)
    return CliRunner().invoke(app, ["inspect", *arguments], env=environment)


def test_json() -> None:
    result = run(KIMI, "--json", COLUMNS="20")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "model": KIMI,
        "architecture": "kimi_linear",
        "family": "kda",
        "layers": 20,
        "attention_layers": 7,
        "units_per_layer": 4096,
        "bytes": {"temporal": 41_943_040, "conv": 1_474_560, "checkpoint": 43_417_600},
        "kv_bytes_per_token": 8064,
        "max_context": 1_048_576,
    }


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_full_json_adds_up(path: Path) -> None:
    result = json.loads(run(str(path), "--json", "--full").stdout)
    layers = result["per_layer"]
    assert [layer["index"] for layer in layers] == list(range(len(layers)))
    assert len(layers) == result["layers"] + result["attention_layers"]
    for part in ("temporal", "conv"):
        assert sum(layer["bytes"][part] for layer in layers if "bytes" in layer) == result["bytes"][part]
    per_token = sum(layer.get("kv_bytes_per_token", 0) for layer in layers)
    assert per_token == result["kv_bytes_per_token"]


def test_units_that_differ_are_listed() -> None:
    layers = [RecurrentLayer(i, "gdn", heads, 2, 8, 8, "head", 64, 4) for i, heads in enumerate((2, 4))]
    layout = ModelLayout("qwen3_5", StateLayout(tuple(layers)), KVLayout(()), 2, 8, 16, "bfloat16")
    result = as_dict("m", layout)
    assert result["units_per_layer"] == [2, 4]
    assert result["kv_bytes_per_token"] == 0


def test_tables() -> None:
    result = run(KIMI)
    assert result.exit_code == 0
    for text in ("Kimi delta attention", "0-2, 4-6", "128 x 128", "12,288 x 3", "41.94 MB", "1.47 MB", "43.42 MB"):
        assert text in result.stdout
    assert "KV of 5,384 tokens" in result.stdout
    assert "latent" in result.stdout
    assert "\x1b" not in result.stdout


def test_full_tables_have_a_row_for_each_layer() -> None:
    short, full = run(KIMI).stdout, run(KIMI, "--full").stdout
    assert (short.count("Kimi delta attention"), full.count("Kimi delta attention")) == (1, 20)
    assert (short.count("latent"), full.count("latent")) == (1, 7)


def test_a_directory_needs_no_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(published("granite-4.0-h-tiny")))
    result = json.loads(run(str(tmp_path), "--json").stdout)
    assert (result["family"], result["layers"], result["units_per_layer"]) == ("mamba2", 36, 48)


def test_positions_are_shown() -> None:
    assert "rotary, 64 dims, base 10,000,000" in run(str(CONFIGS / "qwen3_5-27b.json")).stdout


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"\xff", "not valid UTF-8"),
        (b'{"model_type": "llama"}', "no recurrent layer"),
        (b'{"model_type": "jamba"}', "jamba is not supported"),
        (b'{"model_type": "kimi_linear"}', "neither layer_types nor"),
    ],
)
def test_bad_input(tmp_path: Path, content: bytes, message: str, as_json: bool) -> None:
    (tmp_path / "config.json").write_bytes(content)
    result = run(str(tmp_path), *(["--json"] if as_json else []))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr


def test_no_such_model(tmp_path: Path) -> None:
    result = run(str(tmp_path / "absent"))
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "no directory" in result.stderr
