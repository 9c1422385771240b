"""Named tensors out of a model's files, by ranges: hardly anything else is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch

from holdover.errors import WeightsError
from holdover.weights.files import ModelFiles, RangeFile
from holdover.weights.header import Header, TensorEntry, read_header

# two tensors this near are read in one go, gap included: a request costs more than as many bytes
MERGE_GAP = 16 << 10
# but a run of tensors is not read together beyond this length, which bounds the memory
_MERGE_LENGTH = 1 << 20

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

Entries = dict[str, TensorEntry]


def tensor_names(files: ModelFiles) -> frozenset[str]:
    """Names of all tensors in the files. Raises WeightsError where a header does not parse."""
    return frozenset(name for file in files.weights for name in read_header(file).tensors)


def read_tensors(
    files: ModelFiles, names: Iterable[str], *, headers: Mapping[str, Header] | None = None
) -> dict[str, torch.Tensor]:
    """The named tensors, on CPU, in their stored dtype and shape, in the order of ``names``.

    Args:
        files: a model's files.
        names: tensors wanted; a name given twice is read once.
        headers: the headers by file name, if they were read already.

    Raises:
        WeightsError: a name is not in the files, a dtype has no counterpart in torch, or a file is damaged.
    """
    wanted = list(dict.fromkeys(names))
    found: dict[str, torch.Tensor] = {}
    for file in _holders(files, wanted):
        header = read_header(file) if headers is None else headers[file.name]
        entries = {name: header.tensors[name] for name in wanted if name in header.tensors}
        for run in _runs(entries):
            found.update(_read_run(file, header.data_start, run))
    missing = [name for name in wanted if name not in found]
    if missing:
        some = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        raise WeightsError(f"{files.place} has no tensor {some}")
    return {name: found[name] for name in wanted}


def _holders(files: ModelFiles, names: list[str]) -> Iterator[RangeFile]:
    """The files that may hold ``names``: all, or those that an index leads to."""
    weight_map = files.weight_map
    shards = None if weight_map is None else {weight_map[name] for name in names if name in weight_map}
    return (file for file in files.weights if shards is None or file.name in shards)


def _runs(entries: Entries) -> list[Entries]:
    """The tensors of one file in runs that are worth one read each."""
    runs: list[Entries] = []
    first, end = 0, 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].start):
        if not runs or entry.start - end > MERGE_GAP or entry.end - first > _MERGE_LENGTH:
            runs.append({})
            first = entry.start
        runs[-1][name] = entry
        end = entry.end
    return runs


def _read_run(file: RangeFile, data_start: int, run: Entries) -> dict[str, torch.Tensor]:
    first, end = min(entry.start for entry in run.values()), max(entry.end for entry in run.values())
    data = memoryview(file.read(data_start + first, end - first) if end > first else b"")
    return {
        name: _tensor(file, name, entry, data[entry.start - first : entry.end - first]) for name, entry in run.items()
    }


def _tensor(file: RangeFile, name: str, entry: TensorEntry, data: memoryview) -> torch.Tensor:
    dtype = _TORCH_DTYPES.get(entry.dtype)
    if dtype is None:
        raise WeightsError(f"{file} stores {name} as {entry.dtype}, which cannot be read")
    if not data:
        return torch.empty(entry.shape, dtype=dtype)
    # bytearray: a tensor over immutable bytes could be written through
    return torch.frombuffer(bytearray(data), dtype=dtype).view(entry.shape)
