"""A model's files, wherever they are, and what their two JSON files must say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from holdover.errors import ConfigError, WeightsError

CONFIG_NAME = "config.json"
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


class RangeFile(Protocol):
    """One safetensors file whose ranges can be read; as text it is its path or address."""

    @property
    def name(self) -> str:
        """Its file name."""
        ...

    @property
    def size(self) -> int:
        """Its bytes."""
        ...

    def read(self, start: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``start``. Raises WeightsError where it cannot be read or ends before."""
        ...


@dataclass(frozen=True)
class WeightFile:
    """One local safetensors file.

    Attributes:
        path: where it is.
        size: its bytes.
    """

    path: Path
    size: int

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """Its file name."""
        return self.path.name

    def read(self, start: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``start``. Raises WeightsError where it cannot be read or ends before."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(start)
                data = stream.read(length)
        except OSError as error:
            raise WeightsError(f"{self} cannot be read: {error.strerror or error}") from error
        if len(data) < length:
            raise WeightsError(f"{self} ends {length - len(data)} bytes before byte {start + length}: truncated")
        return data


@dataclass(frozen=True)
class ModelFiles:
    """A model's files, found and not yet verified.

    Attributes:
        place: the directory or address they are in.
        config: the parsed ``config.json``.
        weights: the safetensors files, in name order.
        weight_map: tensor name to file name as the index says, or None where there is no index.
        revision: the hub's commit, ``local`` or ``remote``.
        directory: the directory, or None where they were not downloaded.
    """

    place: str
    config: dict[str, Any]
    weights: tuple[RangeFile, ...]
    weight_map: dict[str, str] | None
    revision: str
    directory: Path | None = None

    @property
    def path(self) -> Path:
        """The directory. Raises WeightsError where the files were not downloaded."""
        if self.directory is None:
            raise WeightsError(f"{self.place} was opened for its headers only: download it to load it")
        return self.directory


def parse_config(data: bytes, where: str) -> dict[str, Any]:
    """The object in a ``config.json``. Raises ConfigError unless it is valid UTF-8, JSON and an object."""
    try:
        return _json_object(data)
    except ValueError as error:
        raise ConfigError(f"{where} is not usable: {error}") from error


def parse_index(data: bytes, where: str) -> dict[str, str]:
    """Tensor name to file name, from an index. Raises WeightsError unless every file is a plain safetensors name."""
    try:
        weight_map = _json_object(data).get("weight_map")
    except ValueError as error:
        raise WeightsError(f"{where} is not usable: {error}") from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{where} has no weight_map; wanted tensor names with their files")
    for tensor, name in weight_map.items():
        # an index must not lead out of its directory
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise WeightsError(f"{where} places {tensor} in {name!r}; wanted a safetensors file of the same directory")
    return weight_map


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not valid UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not valid JSON ({error})") from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it holds {type(value).__name__}; wanted an object")
    return value
