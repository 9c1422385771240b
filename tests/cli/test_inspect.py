import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.arch.fixtures import CONFIGS, published
from tests.cli.run import error_line, invoke
from tests.project.paths import MODELS
from tests.retention.checkpoint import write_checkpoint

KIMI = str(CONFIGS / "kimi-linear-48b-a3b.json")


def run(*arguments: str, **environment: str) -> Any:
    return invoke("inspect", *arguments, **environment)


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("kimi"), "kimi-linear-48b-a3b"))


def test_json_of_a_configuration() -> None:
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
    # a layer may hold both, or neither
    assert [layer["index"] for layer in layers] == sorted(layer["index"] for layer in layers)
    assert len(layers) == result["layers"] + result["attention_layers"]
    for part in ("temporal", "conv"):
        assert sum(layer["bytes"][part] for layer in layers if "bytes" in layer) == result["bytes"][part]
    per_token = sum(layer.get("kv_bytes_per_token", 0) for layer in layers)
    assert per_token == result["kv_bytes_per_token"]


def test_tables_of_a_configuration() -> None:
    result = run(KIMI)
    assert result.exit_code == 0
    for text in ("Kimi delta attention", "0-2, 4-6", "128 x 128", "12,288 x 3", "41.94 MB", "1.47 MB", "43.42 MB"):
        assert text in result.stdout
    assert "KV of 5,384 tokens" in result.stdout
    assert "latent" in result.stdout
    assert "\x1b" not in result.stdout
    assert result.stdout.splitlines()[-1].endswith("horizons need them")
    assert "W_max" not in result.stdout


def test_full_tables_have_a_row_for_each_layer() -> None:
    short, full = run(KIMI).stdout, run(KIMI, "--full").stdout
    assert (short.count("Kimi delta attention"), full.count("Kimi delta attention")) == (1, 20)
    assert (short.count("latent"), full.count("latent")) == (1, 7)


def test_a_directory_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(published("granite-4.0-h-tiny")))
    result = json.loads(run(str(tmp_path), "--json").stdout)
    assert (result["family"], result["layers"], result["units_per_layer"]) == ("mamba2", 36, 48)
    assert "windows" not in result


def test_positions_are_shown() -> None:
    assert "rotary, 64 dims, base 10,000,000" in run(str(CONFIGS / "qwen3_5-27b.json")).stdout


def test_json_of_a_bundled_model() -> None:
    result = run("tiny-gdn", "--json", "--wmax", "64,16", "--full")
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert (facts["family"], facts["layers"], facts["units_per_layer"]) == ("gdn", 6, 8)
    assert [window["w_max"] for window in facts["windows"]] == [64, 16]
    assert [len(horizons) for horizons in facts["horizons"]] == [8] * 6
    for window in facts["windows"]:
        counts = [sum(horizon > window["w_max"] for horizon in layer) for layer in facts["horizons"]]
        assert (window["retained"], window["r_max"]) == (sum(counts), max(counts))
        assert window["tp"].keys() == {"1", "2", "4", "8"}
        assert all(modes.keys() == {"off", "storage", "hybrid"} for modes in window["tp"].values())
    assert facts["gate"] == {"form": "softplus", "input": -0.3, "epsilon": 1e-3, "calibrated": False}


def test_tables_of_a_bundled_model() -> None:
    result = run("tiny-gdn")
    assert result.exit_code == 0
    for text in ("gated delta net", "a_s = -0.3", "kept at 512", "padded", "hybrid", "TP 8", "uncalibrated"):
        assert text in result.stdout


def test_channels(kimi: str) -> None:
    facts = json.loads(run(kimi, "--json", "--wmax", "16").stdout)
    (window,) = facts["windows"]
    assert 0 < window["retained_fraction"] < 1
    assert window["mixed_pairs"] > 0.5
    assert window["retained"] / 20 == window["r_mean"] < window["r_max"]
    assert window["c_temp_ragged"] > window["c_temp_padded"] > 1
    assert window["c_ckpt_int8"] > window["c_ckpt"] > window["c_ckpt_padded"] > 1
    assert window["tp"]["8"]["off"] > window["tp"]["8"]["storage"] >= 1
    assert facts["gate"]["calibrated"] is True


def test_gate_input_and_epsilon() -> None:
    def kept(*options: str) -> int:
        return json.loads(run("tiny-gdn", "--json", "--wmax", "64", *options).stdout)["windows"][0]["retained"]

    assert kept() > kept("--a-s", "1.0")
    # a larger remainder is reached sooner
    assert kept() > kept("--epsilon", "0.1")


def test_quantised_models_say_that_heads_stay(kimi: str, tmp_path: Path) -> None:
    model = Path(shutil.copytree(kimi, tmp_path / "quantised"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    assert "linear weights are quantised" in run(str(model), "--wmax", "16").stdout


def test_pictures_and_page(tmp_path: Path) -> None:
    page, folder = tmp_path / "report.html", tmp_path / "new" / "pictures"
    result = run("tiny-gdn", "--wmax", "16", "--html", str(page), "--png", str(folder), "--json")
    assert (result.exit_code, json.loads(result.stdout)["model"]) == (0, "tiny-gdn")
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["decay-profile.png", "head-horizons.png", "layer-means.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.iterdir())
    text = page.read_text()
    assert (text.count("<img"), text.count("<table>")) == (3, 7)
    assert "uncalibrated" in text


def test_pictures_need_weights(tmp_path: Path) -> None:
    result = run(KIMI, "--png", str(tmp_path / "pictures"))
    assert result.exit_code == 2
    assert "need them" in error_line(result.stderr)
    assert not (tmp_path / "pictures").exists()


def test_no_place_to_write(tmp_path: Path) -> None:
    result = run("tiny-gdn", "--html", str(tmp_path / "absent" / "report.html"))
    assert result.exit_code == 2
    assert "report.html cannot be written" in error_line(result.stderr)


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
def test_bad_configuration(tmp_path: Path, content: bytes, message: str, as_json: bool) -> None:
    (tmp_path / "config.json").write_bytes(content)
    result = run(str(tmp_path), *(["--json"] if as_json else []))
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in error_line(result.stderr)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--wmax", "16,x"), "--wmax is '16,x'"),
        (("--wmax", ""), "--wmax is ''"),
        (("--wmax", "2"), "w_max is 2"),
        (("--epsilon", "1"), "epsilon is 1.0"),
        (("--a-s", "nan"), "gate_input nan"),
    ],
)
def test_bad_options(options: tuple[str, ...], message: str) -> None:
    result = run("tiny-gdn", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in error_line(result.stderr)


def test_damaged_weights(tmp_path: Path) -> None:
    model = Path(shutil.copytree(MODELS / "tiny-gdn", tmp_path / "damaged"))
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    result = run(str(model))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "truncated" in error_line(result.stderr)


def test_no_such_model(tmp_path: Path) -> None:
    result = run(str(tmp_path / "absent"))
    assert result.exit_code == 2
    assert "no directory" in error_line(result.stderr)
