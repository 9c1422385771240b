"""Finds a model's files: in a local directory, or on the Hugging Face hub."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from holdover.errors import ConfigError, WeightsError
from holdover.weights.bundled import bundled_path

CONFIG_NAME = "config.json"
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
# what a snapshot needs: configuration, index, weights, tokenizer and chat template
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
# copies of the same weights in their makers' own formats
_HUB_IGNORED = ["original/*", "consolidated*"]
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class WeightFile:
    """One safetensors file.

    Attributes:
        path: where it is.
        size: its bytes.
    """

    path: Path
    size: int

    def open(self) -> BufferedReader:
        """The file, open for reading. Raises WeightsError where it cannot be opened."""
        try:
            return self.path.open("rb")
        except OSError as error:
            raise WeightsError(f"{self.path} cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True)
class ModelFiles:
    """A model's files, found and not yet verified.

    Attributes:
        path: the directory.
        config: its parsed ``config.json``.
        weights: the safetensors files that exist, in name order.
        weight_map: tensor name to file name as the index says, or None where there is no index.
        revision: the hub's commit, or ``local``.
    """

    path: Path
    config: dict[str, Any]
    weights: tuple[WeightFile, ...]
    weight_map: dict[str, str] | None
    revision: str


def resolve(model: str) -> ModelFiles:
    """The files of ``model``, a directory, a bundled model or a hub id; a hub model is downloaded unless it is cached.

    Raises:
        ConfigError: ``config.json`` is not a JSON object.
        WeightsError: there is no such model, or no configuration or safetensors weights in it.
    """
    path = _local_path(model)
    if path.is_dir():
        return _files_in(path, "local")
    patterns = {"allow_patterns": _HUB_PATTERNS, "ignore_patterns": _HUB_IGNORED}
    snapshot = Path(_from_hub("snapshot_download", model, **patterns))
    return _files_in(snapshot, snapshot.name)


def load_config(model: str) -> dict[str, Any]:
    """The configuration of ``model`` alone: a directory, a path of a ``config.json`` or a hub id.

    Raises:
        ConfigError: the file is not a JSON object.
        WeightsError: there is no such model or no configuration in it.
    """
    path = _local_path(model)
    if path.is_file():
        return read_config(path)
    if path.is_dir():
        return read_config(path / CONFIG_NAME)
    return read_config(Path(_from_hub("hf_hub_download", model, filename=CONFIG_NAME)))


def read_config(path: Path) -> dict[str, Any]:
    """Parse a ``config.json``.

    Raises:
        ConfigError: it is not valid UTF-8, not JSON, or not an object.
        WeightsError: it does not exist or cannot be read.
    """
    try:
        return _json_object(path)
    except FileNotFoundError:
        raise WeightsError(f"{path.parent} has no {path.name}: not a model directory") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not usable: {error}") from error


def _local_path(model: str) -> Path:
    """``model`` as a path that can at least be looked for; what exists wins over a bundled model of that name.

    Raises:
        WeightsError: the path cannot be looked for.
    """
    try:
        path = Path(model).expanduser()
        if not path.exists() and (bundled := bundled_path(model)) is not None:
            return bundled
    except (OSError, RuntimeError) as error:
        # too long a name, a home of nobody, a directory that may not be entered
        raise WeightsError(f"{model[:200]!r} cannot be looked for: {error}"[:400]) from error
    return path


def _json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes().decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not valid UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not valid JSON ({error})") from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror or error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"it holds {type(value).__name__}; wanted an object")
    return value


def _files_in(path: Path, revision: str) -> ModelFiles:
    config = read_config(path / CONFIG_NAME)
    weight_map = _weight_map(path)
    weights = tuple(WeightFile(file, file.stat().st_size) for file in _weight_paths(path, weight_map))
    if not weights and weight_map is None:
        raise WeightsError(_why_no_weights(path))
    return ModelFiles(path, config, weights, weight_map, revision)


def _weight_map(path: Path) -> dict[str, str] | None:
    index = path / INDEX_NAME
    if not index.is_file():
        return None
    try:
        weight_map = _json_object(index).get("weight_map")
    except ValueError as error:
        raise WeightsError(f"{index} is not usable: {error}") from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{index} has no weight_map; wanted tensor names with their files")
    for tensor, name in weight_map.items():
        # an index must not lead out of its directory
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise WeightsError(f"{index} places {tensor} in {name!r}; wanted a safetensors file of the same directory")
    return weight_map


def _weight_paths(path: Path, weight_map: dict[str, str] | None) -> list[Path]:
    if weight_map is not None:
        return [path / name for name in sorted(set(weight_map.values())) if (path / name).is_file()]
    if (path / SINGLE_NAME).is_file():
        return [path / SINGLE_NAME]
    return sorted(file for file in path.glob("*.safetensors") if file.is_file())


def _why_no_weights(path: Path) -> str:
    pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
    if pickles:
        return (
            f"{path} has only pickled weights ({', '.join(pickles[:3])}), which can run code when read and are "
            "refused: convert them to safetensors"
        )
    return f"{path} has no weights: wanted {SINGLE_NAME}, or {INDEX_NAME} with its shards"


def _from_hub(function: str, model: str, **arguments: Any) -> str:
    """Call a download function of the hub's client; every way it can fail becomes one message. Raises WeightsError."""
    try:
        # a local model must not need the hub's client, nor wait for its import
        import huggingface_hub

        # the client's parts are imported on access, which also sets its logger's level
        download = getattr(huggingface_hub, function)
    except ImportError:
        raise WeightsError(
            f"no directory {model!r} exists, and it cannot be taken from the hub: huggingface_hub is not installed"
        ) from None
    try:
        with _quiet_hub():
            return str(download(repo_id=model, **arguments))
    except Exception as error:  # the client lets errors of its transport through, too many to name
        reason = " ".join(str(error).split()) or type(error).__name__
        raise WeightsError(
            f"no directory {model!r} exists, and the hub could not give it either ({reason[:300]})"
        ) from error


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """Silence the client's warnings about retries: what went wrong is said once, by the error."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
