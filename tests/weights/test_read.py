from pathlib import Path

import pytest
import torch

from holdover.errors import WeightsError
from holdover.weights.header import read_headers
from holdover.weights.read import MERGE_GAP, read_tensors, tensor_names
from holdover.weights.source import resolve
from tests.weights.conftest import INDEX, recorded, tensors, write_model

FIRST, SECOND = tensors()
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
    files, reads = recorded(resolve(str(model)))
    headers = read_headers(files)
    del reads[:]
    read_tensors(files, ["b.dt_bias", "a.A_log", "b.dt_bias"], headers=headers)
    # 4 fp32 and 16 fp64 numbers
    assert [(name, length) for name, _, length in reads] == [(FIRST, 16), (SECOND, 128)]


def test_near_tensors_are_one_read_and_far_ones_are_not(tmp_path: Path) -> None:
    gap = {f"{name}.gap": torch.ones(count, dtype=torch.uint8) for name, count in (("a", 64), ("b", MERGE_GAP + 1))}
    wanted = {name: torch.full((8,), ord(name), dtype=torch.uint8) for name in ("a", "b", "c")}
    path = write_model(tmp_path, {FIRST: wanted | gap})
    files, reads = recorded(resolve(str(path)))
    headers = read_headers(files)
    del reads[:]
    # the library stores tensors of one dtype in the order of their names
    read = read_tensors(files, ["c", "a", "b"], headers=headers)
    assert [length for _, _, length in reads] == [8 + 64 + 8, 8]
    assert all(same(read[name], wanted[name]) for name in wanted)


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
