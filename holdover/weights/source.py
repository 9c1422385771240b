"""Finds a model's files: in a local directory, on the Hugging Face hub, or behind an address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdover.errors import WeightsError
from holdover.weights.bundled import bundled_path
from holdover.weights.files import (
    CONFIG_NAME,
    INDEX_NAME,
    SINGLE_NAME,
    ModelFiles,
    WeightFile,
    parse_config,
    parse_index,
)
from holdover.weights.hub import download, is_offline, open_hub
from holdover.weights.remote import is_url, load_url_config, open_url

__all__ = ["ModelFiles", "load_config", "open_files", "read_config", "resolve", "tokenizer_folder"]

# what a snapshot needs: configuration, index, tokenizer and chat template, and the weights
_TOKENIZER_PATTERNS = ["*.json", "*.jinja", "*.txt", "*.model"]
_HUB_PATTERNS = [*_TOKENIZER_PATTERNS, "*.safetensors"]
# copies of the same weights in their makers' own formats
_HUB_IGNORED = ["original/*", "consolidated*"]
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def resolve(model: str) -> ModelFiles:
    """The files of ``model``, a directory, a bundled model or a hub id; a hub model is downloaded unless it is cached.

    Raises:
        ConfigError: ``config.json`` is not a JSON object.
        WeightsError: there is no such model, or no configuration or safetensors weights in it.
    """
    if is_url(model):
        raise WeightsError(f"{model} is an address, of which only headers and ranges are read: download it to load it")
    path = _local_path(model)
    if path.is_dir():
        return _files_in(path, "local")
    patterns = {"allow_patterns": _HUB_PATTERNS, "ignore_patterns": _HUB_IGNORED}
    snapshot = Path(download("snapshot_download", model, **patterns))
    return _files_in(snapshot, snapshot.name)


def tokenizer_folder(model: str) -> Path:
    """Directory with the tokenizer of ``model``, as `resolve` finds it; of a hub model no weights are downloaded.

    Raises:
        WeightsError: there is no such model.
    """
    if is_url(model):
        raise WeightsError(f"{model} is an address, of which only headers and ranges are read: download its tokenizer")
    path = _local_path(model)
    if path.is_dir():
        return path
    patterns = {"allow_patterns": _TOKENIZER_PATTERNS, "ignore_patterns": _HUB_IGNORED}
    return Path(download("snapshot_download", model, **patterns))


def open_files(model: str) -> ModelFiles:
    """The files of ``model`` for their configuration, headers and single tensors; no weights are downloaded.

    Args:
        model: a directory, a bundled model, a hub id, or the ``http`` or ``https`` address of a model's directory. A
            hub model is read by ranges even if it is cached, but from the cache where the client is offline.

    Raises:
        ConfigError: ``config.json`` is not a JSON object.
        WeightsError: there is no such model, no configuration or safetensors weights in it, access is refused, or the
            server does not serve ranges.
    """
    if is_url(model):
        return open_url(model)
    if _local_path(model).is_dir() or is_offline():
        return resolve(model)
    return open_hub(model)


def load_config(model: str) -> dict[str, Any]:
    """The configuration of ``model`` alone: a directory, a path of a ``config.json``, a hub id or an address.

    Raises:
        ConfigError: the file is not a JSON object.
        WeightsError: there is no such model or no configuration in it.
    """
    if is_url(model):
        return load_url_config(model)
    path = _local_path(model)
    if path.is_file():
        return read_config(path)
    if path.is_dir():
        return read_config(path / CONFIG_NAME)
    return read_config(Path(download("hf_hub_download", model, filename=CONFIG_NAME)))


def read_config(path: Path) -> dict[str, Any]:
    """Parse a ``config.json``.

    Raises:
        ConfigError: it is not valid UTF-8, not JSON, or not an object.
        WeightsError: it does not exist or cannot be read.
    """
    try:
        return parse_config(_read(path), str(path))
    except FileNotFoundError:
        raise WeightsError(f"{path.parent} has no {path.name}: not a model directory") from None


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


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror or error}") from error


def _files_in(path: Path, revision: str) -> ModelFiles:
    config = read_config(path / CONFIG_NAME)
    index = path / INDEX_NAME
    weight_map = parse_index(_read(index), str(index)) if index.is_file() else None
    weights = tuple(WeightFile(file, file.stat().st_size) for file in _weight_paths(path, weight_map))
    if not weights and weight_map is None:
        raise WeightsError(_why_no_weights(path))
    return ModelFiles(str(path), config, weights, weight_map, revision, path)


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
