import json
import struct
from pathlib import Path

import pytest

from holdover.errors import WeightsError
from holdover.weights.check import check_files
from holdover.weights.files import WeightFile
from holdover.weights.header import read_header
from holdover.weights.source import resolve
from tests.weights.conftest import INDEX, tensors

SHARD = "model-00002-of-00002.safetensors"


def raw(header: object, data: bytes = b"") -> bytes:
    """A safetensors file of ``header`` (an object, or its bytes) and ``data``."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: object = "F32", shape: object = (1,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


def test_whole_files_pass(model: Path) -> None:
    check_files(resolve(str(model)))


def test_header_agrees_with_the_library(model: Path) -> None:
    for name, held in tensors().items():
        path = model / name
        header = read_header(WeightFile(path, path.stat().st_size))
        assert header.tensors.keys() == held.keys()
        assert all(header.tensors[key].shape == tuple(value.shape) for key, value in held.items())
        assert header.data_start + header.data_length == path.stat().st_size


def test_missing_shard(model: Path) -> None:
    (model / SHARD).unlink()
    with pytest.raises(WeightsError, match=f"lacks 1 of the shards .*{SHARD}"):
        check_files(resolve(str(model)))


@pytest.mark.parametrize("kept", [0, 3, 8, 20, -1, -4096])
def test_truncated_shard(model: Path, kept: int) -> None:
    path = model / SHARD
    data = path.read_bytes()
    path.write_bytes(data[:kept])
    with pytest.raises(WeightsError, match=rf"{SHARD} .*has {len(data[:kept])} bytes; wanted .*truncated"):
        check_files(resolve(str(model)))


def test_truncation_by_one_byte_names_both_sizes(model: Path) -> None:
    path = model / SHARD
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(WeightsError, match=f"has {size - 1} bytes; wanted {size}"):
        check_files(resolve(str(model)))


def test_too_long_shard(model: Path) -> None:
    path = model / SHARD
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(WeightsError, match=f"has {size + 1} bytes; wanted {size}: longer"):
        check_files(resolve(str(model)))


def test_a_shard_without_its_tensor(model: Path) -> None:
    index = json.loads((model / INDEX).read_text())
    index["weight_map"]["c.weight"] = SHARD
    (model / INDEX).write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=r"lacks c\.weight"):
        check_files(resolve(str(model)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (raw(b"{"), "header is not JSON"),
        (raw(b"\xff"), "header is not JSON"),
        (raw([]), "header is not an object"),
        (raw({"x": 1}), "describes x without"),
        (raw({"x": {}}), "describes x without"),
        (raw(entry(dtype="Q7")), "describes x without"),
        (raw(entry(offsets=(0,))), "describes x without"),
        (raw(entry(shape=("1",))), "gives x bytes|describes x without"),
        (raw(entry(shape=(-1,), offsets=(0, 4))), "gives x bytes 0 to 4"),
        (raw(entry(offsets=(0, 8)), bytes(8)), r"gives x bytes 0 to 8, which is not F32 \[1\]"),
        (raw(entry(offsets=(4, 8)), bytes(8)), "starts x at byte 4 of the data; wanted 0"),
        (raw(entry() | {"y": entry()["x"]}, bytes(4)), "starts y at byte 0"),
        (struct.pack("<Q", 2**60), "more than any has"),
        (b"PK\x03\x04 a zip, not safetensors", "more than any has"),
    ],
)
def test_broken_header(model: Path, content: bytes, message: str) -> None:
    (model / SHARD).write_bytes(content)
    with pytest.raises(WeightsError, match=message) as raised:
        check_files(resolve(str(model)))
    assert SHARD in str(raised.value)


def test_a_file_without_tensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw({"__metadata__": {"format": "pt"}}))
    (tmp_path / "config.json").write_text("{}")
    check_files(resolve(str(tmp_path)))


def test_vanished_file(model: Path) -> None:
    files = resolve(str(model))
    (model / SHARD).unlink()
    with pytest.raises(WeightsError, match="cannot be read"):
        check_files(files)
