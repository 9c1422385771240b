"""Headers of safetensors files: 8 bytes of length (little endian), that many bytes of JSON, then the data."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from holdover.errors import WeightsError
from holdover.weights.files import ModelFiles, RangeFile

LENGTH_BYTES = 8
# the format's own limit; a longer one is not a header
_LONGEST_HEADER = 100_000_000

# bits per element, as the format names its dtypes
DTYPE_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64,
    "F32": 32, "I32": 32, "U32": 32,
    "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "BOOL": 8, "I8": 8, "U8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies.

    Attributes:
        dtype: the format's dtype name.
        shape: its shape.
        start: first byte in the data part.
        end: one past its last byte in the data part.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Header:
    """A parsed header.

    Attributes:
        raw: its JSON as stored.
        tensors: name to place.
        data_start: offset of the data part in the file.
        data_length: bytes of the data part.
    """

    raw: bytes
    tensors: dict[str, TensorEntry]
    data_start: int
    data_length: int


def read_header(file: RangeFile) -> Header:
    """Read and verify the header of ``file`` without touching its data.

    Raises:
        WeightsError: the file is truncated, or its header is not one.
    """
    if file.size < LENGTH_BYTES:
        raise _bad(file, f"it has {file.size} bytes; wanted at least {LENGTH_BYTES}: truncated or empty")
    length = int.from_bytes(file.read(0, LENGTH_BYTES), "little")
    if length > _LONGEST_HEADER:
        raise _bad(file, f"its header claims {length} bytes, more than any has: not a safetensors file")
    if file.size < LENGTH_BYTES + length:
        wanted = LENGTH_BYTES + length
        raise _bad(file, f"it has {file.size} bytes; wanted {wanted} for the header alone: truncated")
    raw = file.read(LENGTH_BYTES, length)
    tensors = _parse(file, raw)
    data_length = max((entry.end for entry in tensors.values()), default=0)
    return Header(raw, tensors, LENGTH_BYTES + length, data_length)


def read_headers(files: ModelFiles) -> dict[str, Header]:
    """The header of every file, by file name. Raises WeightsError where one does not parse."""
    return {file.name: read_header(file) for file in files.weights}


def _parse(file: RangeFile, raw: bytes) -> dict[str, TensorEntry]:
    try:
        value = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _bad(file, f"its header is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise _bad(file, "its header is not an object")
    tensors = {name: _entry(file, name, entry) for name, entry in value.items() if name != "__metadata__"}
    _without_gaps(file, tensors)
    return tensors


def _entry(file: RangeFile, name: str, value: Any) -> TensorEntry:
    try:
        dtype, shape = value["dtype"], tuple(value["shape"])
        start, end = value["data_offsets"]
        bits = DTYPE_BITS[dtype] * math.prod(shape)
        sound = all(type(number) is int and number >= 0 for number in (*shape, start, end))
    except (KeyError, TypeError, ValueError) as error:
        raise _bad(file, f"its header describes {name} without a known dtype, shape and offsets") from error
    if not sound or bits != 8 * (end - start):
        raise _bad(file, f"its header gives {name} bytes {start} to {end}, which is not {dtype} {list(shape)}")
    return TensorEntry(dtype, shape, start, end)


def _without_gaps(file: RangeFile, tensors: dict[str, TensorEntry]) -> None:
    position = 0
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != position:
            raise _bad(file, f"its header starts {name} at byte {entry.start} of the data; wanted {position}")
        position = entry.end


def _bad(file: RangeFile, what: str) -> WeightsError:
    return WeightsError(f"{file} is not usable: {what}")
