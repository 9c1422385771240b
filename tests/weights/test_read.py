from pathlib import Path

import pytest
import torch

from holdover.errors import WeightsError
from holdover.weights.read import read_range, read_tensors, tensor_names
from holdover.weights.source import WeightFile, resolve
from tests.weights.conftest import INDEX, tensors

ALL = {name: value for held in tensors().values() for name, value in held.items()}


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    # equality is not defined for every dtype; bytes are
    return (
        a.shape == b.shape and a.dtype == b.dtype and a.flatten().view(torch.uint8).equal(b.flatten().view(torch.uint8))
    )


@pytest.mark.parametrize("indexed", [True, False])
def test_every_tensor(model: Path, indexed: bool) -> None:
    if not indexed:
        (model / INDEX).unlink()
    files = resolve(str(model))
    assert tensor_names(files) == ALL.keys()
    read = read_tensors(files, reversed(ALL))
    assert list(read) == list(reversed(ALL))
    for name, value in read.items():
        assert same(value, ALL[name]), name


def test_tensors_can_be_written_to(model: Path) -> None:
    files = resolve(str(model))
    read_tensors(files, ["a.A_log"])["a.A_log"].zero_()
    assert same(read_tensors(files, ["a.A_log"])["a.A_log"], ALL["a.A_log"])


def test_only_the_ranges_asked_for_are_read(model: Path) -> None:
    asked: list[tuple[str, int]] = []

    def read(file: WeightFile, start: int, length: int) -> bytes:
        asked.append((file.path.name, length))
        return read_range(file, start, length)

    read_tensors(resolve(str(model)), ["b.dt_bias", "a.A_log", "b.dt_bias"], read=read)
    assert asked == [("model-00002-of-00002.safetensors", 128), ("model-00001-of-00002.safetensors", 16)]


def test_missing_names(model: Path) -> None:
    files = resolve(str(model))
    with pytest.raises(WeightsError, match="has no tensor x0, x1, x2, x3, x4, "):
        read_tensors(files, ["a.A_log", *(f"x{i}" for i in range(9))])
    assert read_tensors(files, []) == {}


def test_data_cut_off(model: Path) -> None:
    path = model / "model-00001-of-00002.safetensors"
    files = resolve(str(model))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightsError, match=r"ends \d+ bytes before"):
        read_tensors(files, ["a.weight"])
