"""Whether a model's files are whole, from their headers and sizes alone."""

from __future__ import annotations

from holdover.errors import WeightsError
from holdover.weights.header import Header, read_header
from holdover.weights.source import INDEX_NAME, ModelFiles, WeightFile


def check_files(files: ModelFiles) -> None:
    """Verify shards, headers and sizes; no tensor data is read.

    Raises:
        WeightsError: a shard of the index is missing, a header does not parse, a file is shorter or longer than its
            header says, or a shard lacks a tensor that the index places in it.
    """
    _check_shards(files)
    headers = {file.path.name: read_header(file) for file in files.weights}
    for file in files.weights:
        _check_size(file, headers[file.path.name])
    _check_index(files, headers)


def _check_shards(files: ModelFiles) -> None:
    present = {file.path.name for file in files.weights}
    missing = sorted(set((files.weight_map or {}).values()) - present)
    if missing:
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise WeightsError(f"{files.path} lacks {len(missing)} of the shards that {INDEX_NAME} names: {some}")


def _check_size(file: WeightFile, header: Header) -> None:
    wanted = header.data_start + header.data_length
    if file.size != wanted:
        what = "truncated" if file.size < wanted else "longer than its header says"
        raise WeightsError(f"{file.path} has {file.size} bytes; wanted {wanted}: {what}, download it again")


def _check_index(files: ModelFiles, headers: dict[str, Header]) -> None:
    for tensor, name in (files.weight_map or {}).items():
        if tensor not in headers[name].tensors:
            raise WeightsError(f"{files.path / name} lacks {tensor}, which {INDEX_NAME} places in it")
