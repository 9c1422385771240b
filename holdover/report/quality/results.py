"""What the report is made from: files of JSON, a folder for each model, and the benchmarks' result files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdover.errors import ConfigError

Facts = Mapping[str, Any]
Rows = list[Facts]


@dataclass(frozen=True)
class ModelResults:
    """Everything that was measured on one model.

    Attributes:
        name: the model's folder.
        files: contents of its files, by name without ending.
        trained: scores of its training, likewise.
    """

    name: str
    files: Mapping[str, Facts]
    trained: Mapping[str, Facts] = field(default_factory=dict)

    def rows(self, protocol: str) -> Rows:
        """Rows of every file of one protocol."""
        return [row for _, facts in self.of(protocol) for row in facts["rows"]]

    def of(self, protocol: str) -> list[tuple[str, Facts]]:
        """Files of one protocol by name."""
        return [(name, facts) for name, facts in self.files.items() if facts.get("protocol") == protocol]

    @property
    def protocols(self) -> list[tuple[str, Facts]]:
        """Files of every protocol by name."""
        return [(name, facts) for name, facts in self.files.items() if "protocol" in facts]


@dataclass(frozen=True)
class Results:
    """All that a report is made from.

    Attributes:
        models: one for each folder, by name.
        benchmarks: result files of benchmarks, by name without ending.
    """

    models: tuple[ModelResults, ...]
    benchmarks: Mapping[str, Facts] = field(default_factory=dict)


def read_results(root: Path, *, training: Path | None = None, benchmarks: Path | None = None) -> Results:
    """Read every result.

    Args:
        root: a folder with one folder a model, which holds what its runs wrote.
        training: scores of training, a folder a model too.
        benchmarks: result files of benchmarks.

    Raises:
        ConfigError: there is no model, or a file is no JSON object.
    """
    found = []
    for folder in sorted(path for path in root.glob("*") if path.is_dir()):
        files = _read(folder.glob("*.json"))
        trained = {} if training is None else _read((training / folder.name).glob("*.json"))
        if files:
            found.append(ModelResults(folder.name, files, trained))
    if not found:
        raise ConfigError(f"{root} has no results: run `holdover report run`, or `make report`, which does both")
    return Results(tuple(found), {} if benchmarks is None else _read(benchmarks.glob("*.json")))


def _read(paths: Iterable[Path]) -> dict[str, Facts]:
    return {path.stem: _facts(path) for path in sorted(paths)}


def _facts(path: Path) -> Facts:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is no JSON object")
    return found
