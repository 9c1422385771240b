"""Whether a model's files are whole, from their headers and sizes alone."""

from __future__ import annotations

from collections.abc import Mapping

from holdover.errors import WeightsError
from holdover.weights.files import INDEX_NAME, ModelFiles, RangeFile
from holdover.weights.header import Header, read_headers


def check_files(files: ModelFiles) -> dict[str, Header]:
    """Verify shards, headers and sizes; no tensor data is read.

    Returns:
        The header of every file, by file name.

    Raises:
        WeightsError: a shard of the index is missing, a header does not parse, a file is shorter or longer than its
            header says, or a shard lacks a tensor that the index places in it.
    """
    _check_shards(files)
    headers = read_headers(files)
    for file in files.weights:
        _check_size(file, headers[file.name])
    _check_index(files, headers)
    return headers


def _check_shards(files: ModelFiles) -> None:
    present = {file.name for file in files.weights}
    missing = sorted(set((files.weight_map or {}).values()) - present)
    if missing:
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise WeightsError(f"{files.place} lacks {len(missing)} of the shards that {INDEX_NAME} names: {some}")


def _check_size(file: RangeFile, header: Header) -> None:
    wanted = header.data_start + header.data_length
    if file.size != wanted:
        what = "truncated" if file.size < wanted else "longer than its header says"
        raise WeightsError(f"{file} has {file.size} bytes; wanted {wanted}: {what}, download it again")


def _check_index(files: ModelFiles, headers: Mapping[str, Header]) -> None:
    for tensor, name in (files.weight_map or {}).items():
        if tensor not in headers[name].tensors:
            raise WeightsError(f"{files.place}/{name} lacks {tensor}, which {INDEX_NAME} places in it")
