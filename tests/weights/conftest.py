"""A small two-shard model directory to damage."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from holdover.weights.files import ModelFiles, RangeFile

CONFIG = {"model_type": "granitemoehybrid", "vocab_size": 8}
INDEX = "model.safetensors.index.json"


def tensors() -> dict[str, dict[str, torch.Tensor]]:
    """Shard name to tensors; big enough that no sample covers a whole one."""
    random = torch.Generator().manual_seed(0)
    return {
        "model-00001-of-00002.safetensors": {
            "a.weight": torch.randn(300, 257, generator=random),
            "a.A_log": torch.randn(1, 1, 4, 1, generator=random),
            "a.empty": torch.empty(0, 3),
        },
        "model-00002-of-00002.safetensors": {
            "b.weight": torch.randn(400, 129, generator=random).bfloat16(),
            "b.dt_bias": torch.arange(16, dtype=torch.float64),
            "b.mask": torch.tensor([True, False]),
            "b.fp8": torch.randn(32, generator=random).to(torch.float8_e4m3fn),
        },
    }


def write_model(path: Path, shards: dict[str, dict[str, torch.Tensor]] | None = None) -> Path:
    """Write config, shards and index under ``path``."""
    shards = tensors() if shards is None else shards
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    for name, held in shards.items():
        save_file(held, path / name, metadata={"format": "pt"})
    weight_map = {tensor: name for name, held in shards.items() for tensor in held}
    (path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


@dataclass
class RecordedFile:
    """A file that notes every read, as (file name, first byte, bytes)."""

    file: RangeFile
    reads: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def size(self) -> int:
        return self.file.size

    def read(self, start: int, length: int) -> bytes:
        self.reads.append((self.name, start, length))
        return self.file.read(start, length)


def recorded(files: ModelFiles) -> tuple[ModelFiles, list[tuple[str, int, int]]]:
    """``files`` with every read of them noted in the list."""
    reads: list[tuple[str, int, int]] = []
    return replace(files, weights=tuple(RecordedFile(file, reads) for file in files.weights)), reads


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")
