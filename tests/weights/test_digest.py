import json
from pathlib import Path

import pytest
import torch

from holdover.weights.digest import SAMPLE_BYTES, STRIDED_SAMPLES, model_digest
from holdover.weights.source import resolve
from tests.weights.conftest import CONFIG, recorded, tensors, write_model

FIRST, SECOND = tensors()


def digest_of(path: Path) -> str:
    return model_digest(resolve(str(path)))


def changed(path: Path, shard: str, tensor: str, change) -> str:
    shards = tensors()
    shards[shard][tensor] = change(shards[shard][tensor])
    return digest_of(write_model(path, shards))


def test_same_model_same_digest(model: Path, tmp_path: Path) -> None:
    copy = write_model(tmp_path / "copy")
    assert digest_of(model) == digest_of(copy)
    assert len(digest_of(model)) == 64
    int(digest_of(model), 16)


def test_file_times_and_the_writer_do_not_count(model: Path) -> None:
    before = digest_of(model)
    config = CONFIG | {"transformers_version": "9.9", "_name_or_path": "elsewhere"}
    (model / "config.json").write_text(json.dumps(dict(reversed(config.items())), indent=4))
    for file in model.iterdir():
        file.touch()
    assert digest_of(model) == before


def test_configuration_counts(model: Path) -> None:
    before = digest_of(model)
    (model / "config.json").write_text(json.dumps(CONFIG | {"rope_theta": 1.0}))
    assert digest_of(model) != before


@pytest.mark.parametrize(("shard", "tensor"), [(FIRST, "a.weight"), (FIRST, "a.A_log"), (SECOND, "b.dt_bias")])
def test_any_retrained_tensor_counts(model: Path, tmp_path: Path, shard: str, tensor: str) -> None:
    assert changed(tmp_path / "tuned", shard, tensor, lambda value: value + 1) != digest_of(model)


def test_shape_and_name_count(model: Path, tmp_path: Path) -> None:
    other = changed(tmp_path / "flat", FIRST, "a.weight", torch.flatten)
    renamed = tensors()
    renamed[FIRST]["c.weight"] = renamed[FIRST].pop("a.weight")
    assert len({digest_of(model), other, digest_of(write_model(tmp_path / "renamed", renamed))}) == 3


def test_first_and_last_bytes_count(model: Path) -> None:
    before = digest_of(model)
    path = model / SECOND
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert digest_of(model) != before


def test_little_is_read_of_a_large_file(tmp_path: Path) -> None:
    path = write_model(tmp_path, {"model-1.safetensors": {"big": torch.zeros(16 << 20, dtype=torch.uint8)}})
    files, reads = recorded(resolve(str(path)))
    model_digest(files)
    assert 0 < sum(length for _, start, length in reads if start > SAMPLE_BYTES) <= (STRIDED_SAMPLES + 1) * SAMPLE_BYTES


def test_empty_model(tmp_path: Path) -> None:
    digest_of(write_model(tmp_path, {"model-1.safetensors": {"nothing": torch.empty(0)}}))
