"""An identity of a model's weights and configuration that is cheap on hundreds of gigabytes.

Hashed, in this order: the configuration in canonical JSON, without the keys that only say who wrote it; then for each
file in name order its size, its header's bytes, and samples of its data. Samples are 4 KiB from the middle of every
tensor and 64 blocks of 4 KiB at an even stride from the first to the last byte. Every tensor is sampled because
fine-tunes often change a few and have the same header as the model they came from; a change that misses every sample
of every tensor is the price of not reading the whole model. File names are left out: they do not change a model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdover.weights.files import ModelFiles, RangeFile
from holdover.weights.header import Header, read_header

if TYPE_CHECKING:
    from hashlib import _Hash

SAMPLE_BYTES = 4096
STRIDED_SAMPLES = 64
# who saved the configuration, and from where: not what the model computes
_IGNORED_KEYS = frozenset({"transformers_version", "_name_or_path"})


def model_digest(files: ModelFiles) -> str:
    """SHA-256, in hex, that differs for models with different configurations or (but for samples) weights.

    Raises:
        WeightsError: a header does not parse.
    """
    digest = hashlib.sha256()
    add_part(digest, canonical_config(files.config))
    for file in files.weights:
        _add_file(digest, file)
    return digest.hexdigest()


def canonical_config(config: Mapping[str, Any]) -> bytes:
    """The same bytes for every configuration that describes the same model."""
    kept = {key: value for key, value in config.items() if key not in _IGNORED_KEYS}
    return json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()


def add_part(digest: _Hash, part: bytes) -> None:
    """Hash one part of a list of parts, its length first: no two lists hash the same bytes."""
    digest.update(len(part).to_bytes(8, "little"))
    digest.update(part)


def _add_file(digest: _Hash, file: RangeFile) -> None:
    header = read_header(file)
    add_part(digest, str(file.size).encode())
    add_part(digest, header.raw)
    for start, length in _samples(header):
        add_part(digest, file.read(header.data_start + start, length))


def _samples(header: Header) -> Iterator[tuple[int, int]]:
    """(offset in the data part, length) of each sample, in file order."""
    spans = set()
    for entry in header.tensors.values():
        length = min(SAMPLE_BYTES, entry.end - entry.start)
        spans.add((entry.start + (entry.end - entry.start - length) // 2, length))
    length = min(SAMPLE_BYTES, header.data_length)
    last = header.data_length - length
    spans.update((last * step // (STRIDED_SAMPLES - 1), length) for step in range(STRIDED_SAMPLES))
    return iter(sorted(spans))
