"""Named tensors out of a model's files, by ranges: nothing else is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from holdover.errors import WeightsError
from holdover.weights.header import Header, TensorEntry, read_header
from holdover.weights.source import ModelFiles, WeightFile

# (file, first byte, number of bytes) to exactly those bytes
RangeReader = Callable[[WeightFile, int, int], bytes]

_TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
# names that one message lists
_SHOWN = 5


def read_range(file: WeightFile, start: int, length: int) -> bytes:
    """``length`` bytes of a local file from ``start``. Raises WeightsError where it ends before."""
    with file.open() as stream:
        stream.seek(start)
        data = stream.read(length)
    if len(data) < length:
        raise WeightsError(f"{file.path} ends {length - len(data)} bytes before byte {start + length}: truncated")
    return data


def tensor_names(files: ModelFiles) -> frozenset[str]:
    """Names of all tensors in the files. Raises WeightsError where a header does not parse."""
    return frozenset(name for file in files.weights for name in read_header(file).tensors)


def read_tensors(files: ModelFiles, names: Iterable[str], *, read: RangeReader = read_range) -> dict[str, torch.Tensor]:
    """The named tensors, on CPU, in their stored dtype and shape, in the order of ``names``.

    Args:
        files: a model's files.
        names: tensors wanted; a name given twice is read once.
        read: how a range of a file is read.

    Raises:
        WeightsError: a name is not in the files, a dtype has no counterpart in torch, or a file is damaged.
    """
    wanted = list(dict.fromkeys(names))
    places = _locate(files, wanted)
    missing = [name for name in wanted if name not in places]
    if missing:
        some = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        raise WeightsError(f"{files.path} has no tensor {some}")
    return {name: _read_tensor(name, *places[name], read) for name in wanted}


def _locate(files: ModelFiles, names: list[str]) -> dict[str, tuple[WeightFile, Header]]:
    """File and header of each name that exists; with an index, only headers of the files it leads to are read."""
    weight_map = files.weight_map
    shards = None if weight_map is None else {weight_map[name] for name in names if name in weight_map}
    places = {}
    for file in files.weights:
        if shards is not None and file.path.name not in shards:
            continue
        header = read_header(file)
        places.update({name: (file, header) for name in names if name in header.tensors})
    return places


def _read_tensor(name: str, file: WeightFile, header: Header, read: RangeReader) -> torch.Tensor:
    entry: TensorEntry = header.tensors[name]
    dtype = _TORCH_DTYPES.get(entry.dtype)
    if dtype is None:
        raise WeightsError(f"{file.path} stores {name} as {entry.dtype}, which cannot be read")
    if entry.start == entry.end:
        return torch.empty(entry.shape, dtype=dtype)
    data = read(file, header.data_start + entry.start, entry.end - entry.start)
    # bytearray: a tensor over immutable bytes could be written through
    return torch.frombuffer(bytearray(data), dtype=dtype).view(entry.shape)
