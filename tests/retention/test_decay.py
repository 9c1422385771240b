"""Decay parameters out of files, near and far, and the horizons that follow from them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from holdover.errors import WeightsError
from holdover.retention.decay import ModelDecay, read_decay
from holdover.retention.horizon import LONGEST_HORIZON
from holdover.retention.plan import RetentionPlan
from holdover.weights.bundled import bundled_path
from holdover.weights.header import read_headers
from holdover.weights.read import MERGE_GAP
from holdover.weights.remote import HEAD_BYTES
from holdover.weights.source import open_files
from tests.retention.checkpoint import write_checkpoint
from tests.weights.server import serve

# fixture, dtype of its decay tensors, a_s, recurrent layers, units of each
MODELS = [
    ("qwen3-next-80b-a3b", torch.bfloat16, -0.3, 36, 32),
    ("qwen3_5-27b", torch.bfloat16, -0.3, 48, 48),
    ("kimi-linear-48b-a3b", torch.float32, -0.3, 20, 4096),
    ("kimi-k3", torch.float32, 0.8, 69, 12_288),
    ("ling-3.0-flash", torch.float32, 0.8, 35, 4096),
    ("glm-5.3-flash", torch.float32, 0.8, 34, 8192),
    ("granite-4.0-h-tiny", torch.bfloat16, -0.3, 36, 48),
    ("olmo-hybrid-7b", torch.bfloat16, -0.3, 24, 30),
    ("bamba-9b", torch.bfloat16, -0.3, 29, 128),
    ("nemotron-h-8b", torch.bfloat16, -0.3, 24, 128),
    ("falcon-h1-7b", torch.bfloat16, -0.3, 44, 24),
    ("zamba2-2.7b", torch.bfloat16, -0.3, 54, 80),
    ("rwkv6-finch-1b6", torch.bfloat16, 0.0, 24, 2048),
]
of_every_model = pytest.mark.parametrize(("fixture", "dtype", "a_s", "layers", "units"), MODELS, ids=lambda x: str(x))


def read(place: Path | str) -> ModelDecay:
    return read_decay(open_files(str(place)))


def same_parameters(a: ModelDecay, b: ModelDecay) -> bool:
    pairs = zip(a.layers, b.layers, strict=True)
    return all(
        x.dt_bias.equal(y.dt_bias) and (x.a_log is y.a_log if x.a_log is None else x.a_log.equal(y.a_log))
        for x, y in pairs
    )


@of_every_model
def test_far_is_near(tmp_path: Path, fixture: str, dtype: torch.dtype, a_s: float, layers: int, units: int) -> None:
    path = write_checkpoint(tmp_path, fixture, dtype=dtype)
    near = read(path)
    assert near.gate_input == a_s
    assert [len(horizon) for horizon in near.horizons()] == [units] * layers
    with serve(path) as served:
        far = read(served.url)
        sent = served.sent
    assert far.fingerprint == near.fingerprint
    assert (far.architecture, far.layout, far.gate) == (near.architecture, near.layout, near.gate)
    assert same_parameters(far, near)
    assert all(a.equal(b) for a, b in zip(far.horizons(), near.horizons(), strict=True))

    files = open_files(str(path))
    tensors = [tensor for layer in near.layers for tensor in (layer.a_log, layer.dt_bias) if tensor is not None]
    wanted = sum(header.data_start for header in read_headers(files).values())
    wanted += sum(tensor.nbytes for tensor in tensors)
    wanted += (path / "config.json").stat().st_size + (path / "model.safetensors.index.json").stat().st_size
    # a padded A_log is read with its padding
    slack = HEAD_BYTES * len(files.weights) + (MERGE_GAP + 128) * len(tensors)
    assert sent <= wanted + slack
    assert sent < sum(file.size for file in files.weights)


@of_every_model
def test_horizons_are_those_of_the_files(
    tmp_path: Path, fixture: str, dtype: torch.dtype, a_s: float, layers: int, units: int
) -> None:
    decay = read(write_checkpoint(tmp_path, fixture, dtype=dtype))
    layer, held = decay.layout.state.layers[-1], decay.layers[-1]
    x = held.dt_bias.double() + a_s
    if held.a_log is None:
        rate = x.exp()
    else:
        amplitude = held.a_log.double().exp().repeat_interleave(layer.units // layer.heads)
        softplus = amplitude * torch.log1p(x.exp()).clamp(decay.gate.dt_min, decay.gate.dt_max)
        rate = 5 * torch.sigmoid(amplitude * x) if decay.gate.form == "bounded" else softplus
    expected = (torch.log(torch.tensor(1000.0, dtype=torch.float64)) / rate).clamp(max=LONGEST_HORIZON)
    torch.testing.assert_close(decay.horizons()[-1].double(), expected, rtol=1e-5, atol=0)
    other = decay.horizons(gate_input=a_s + 1, epsilon=0.1)[-1]
    assert bool((other <= decay.horizons()[-1]).all())
    assert bool((other[expected < LONGEST_HORIZON] < expected[expected < LONGEST_HORIZON]).all())


def test_the_bundled_model() -> None:
    path = bundled_path("tiny-gdn")
    assert path is not None
    decay = read("tiny-gdn")
    tensors = load_file(path / "model.safetensors")
    for layer, held in zip(decay.layout.state.layers, decay.layers, strict=True):
        name = next(key for key in tensors if key.endswith(f"layers.{layer.index}.linear_attn.A_log"))
        assert held.a_log is not None
        assert held.a_log.equal(tensors[name])
        assert held.dt_bias.equal(tensors[name.replace("A_log", "dt_bias")])
    assert not decay.calibrated
    plan = RetentionPlan.of(decay, 64)
    plan.check_fits(read(path).fingerprint, decay.layout.state)
    assert 0 < plan.offsets[-1] <= plan.units


def test_fingerprint(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "a", "granite-4.0-h-tiny")
    first = read(path).fingerprint
    assert read(write_checkpoint(tmp_path / "b", "granite-4.0-h-tiny")).fingerprint == first
    assert read(write_checkpoint(tmp_path / "c", "granite-4.0-h-tiny", seed=1)).fingerprint != first

    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"transformers_version": "9", "_name_or_path": "x"}))
    assert read(path).fingerprint == first
    (path / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-6}))
    assert read(path).fingerprint != first


def test_weights_that_do_not_decide_the_decay_are_not_read(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, "granite-4.0-h-tiny")
    first = read(path).fingerprint
    shard = path / "model-00001-of-00003.safetensors"
    tensors = load_file(shard)
    save_file(tensors | {"filler.1": tensors["filler.1"] + 1}, shard)
    assert read(path).fingerprint == first


def test_padding_must_be_zero(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, "kimi-k3")
    assert read(path).layers[0].a_log.shape == (96,)
    shard = path / "model-00001-of-00003.safetensors"
    tensors = load_file(shard)
    name = next(key for key in tensors if key.endswith("A_log"))
    tensors[name][-1] = 0.5
    save_file(tensors, shard)
    with pytest.raises(WeightsError, match=r"A_log has shape \[128\]; wanted 96 entries, one a head"):
        read(path)


def test_other_weights_than_the_configuration_says(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, "granite-4.0-h-tiny")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"mamba_n_heads": 24, "mamba_d_head": 128}))
    with pytest.raises(WeightsError, match=r"A_log has shape \[48\]; wanted 24 entries|dt_bias has shape \[48\]"):
        read(path)


def test_missing_shards_and_tensors(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, "granite-4.0-h-tiny")
    shard = path / "model-00003-of-00003.safetensors"
    shard.rename(path / "elsewhere")
    with pytest.raises(WeightsError, match="lacks 1 of the shards"):
        read(path)
    with serve(path) as served, pytest.raises(WeightsError, match=r"00003\.safetensors: there is no such file"):
        read(served.url)
    (path / "model.safetensors.index.json").unlink()
    with pytest.raises(WeightsError, match=r"no decay parameters of layer \d+ in the model's files; looked for"):
        read(path)
