"""A command's settings from a file beside its flags and the environment, and where each one came from.

One precedence: flag, environment (``HOLDOVER_`` and the flag's name), file, default. A file's values are read as the
flags' are, through the command's own parameters.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from holdover.errors import ConfigError

PREFIX = "HOLDOVER"
# where the values are from is no value itself
_NOT_IN_FILES = frozenset({"config", "print_config", "debug", "help"})
_SECRET = frozenset({"api_key"})
_SOURCES = {"COMMANDLINE": "flag", "ENVIRONMENT": "environment", "DEFAULT_MAP": "file", "DEFAULT": "default"}


class Setting(NamedTuple):
    """One effective value.

    Attributes:
        name: the flag, without its dashes in front.
        value: as the command got it.
        source: ``flag``, ``environment``, ``file`` or ``default``.
    """

    name: str
    value: Any
    source: str

    def line(self) -> str:
        """The setting as a line of a file; one that has no value, or is secret, as a comment."""
        if self.value in (None, [], ()):
            return f"# {self.name} is not set"
        if self.name.replace("-", "_") in _SECRET:
            return f"# {self.name}: {len(self.value)} given, not shown  # {self.source}"
        return f"{self.name} = {_toml(self.value)}  # {self.source}"


def _load(context: typer.Context, path: Path | None) -> Path | None:
    if path is not None and not context.resilient_parsing:
        context.default_map = dict(_read(context, path))
    return path


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", callback=_load, is_eager=True, help="TOML file with flags' names as keys, as max-running = 8."
    ),
]


def effective(context: typer.Context) -> list[Setting]:
    """Every setting of the command that is running."""
    found = []
    for name in _known(context):
        source = context.get_parameter_source(name)
        found.append(Setting(name.replace("_", "-"), context.params[name], _SOURCES[source.name] if source else ""))
    return found


def _read(context: typer.Context, path: Path) -> Iterator[tuple[str, Any]]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {getattr(error, 'strerror', None) or error}") from None
    known = _known(context)
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in known:
            raise ConfigError(f"{path}: unknown key {key!r}; the nearest is {_nearest(name, known)!r}")
        try:
            given = _as_flag(value)
            known[name].process_value(context, given)
        except typer.BadParameter as error:
            raise ConfigError(f"{path}: {key} = {value!r}: {error.message}") from None
        except ValueError as error:
            raise ConfigError(f"{path}: {key} = {value!r}: {error}") from None
        yield name, given


def _known(context: typer.Context) -> dict[str, Any]:
    return {one.name: one for one in context.command.params if one.name not in _NOT_IN_FILES}


def _nearest(name: str, known: dict[str, Any]) -> str:
    (nearest,) = difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)
    return nearest.replace("_", "-")


def _as_flag(value: Any) -> Any:
    """A value as it would have been written behind its flag."""
    if isinstance(value, list):
        return [_as_flag(one) for one in value]
    if isinstance(value, str | bool | int | float):
        return str(value)
    raise ValueError(f"{value!r} is no value of a flag: write a string, a number, true, false, or a list of strings")


def _toml(value: Any) -> str:
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(str(value), ensure_ascii=False)
