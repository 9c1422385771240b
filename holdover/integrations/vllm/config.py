"""The operator's settings: the ``holdover`` object in vLLM's ``--additional-config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from holdover.errors import ConfigError
from holdover.ops.deferred.log import LONGEST_INTERVAL
from holdover.retention import Element

SECTION = "holdover"
DECODE = "decode"


@dataclass(frozen=True)
class TierConfig:
    """Where checkpoints are kept below vLLM's prefix cache, and how they are packed.

    Attributes:
        host_budget: bytes of host memory for entries; None for no host tier.
        spill_dir: directory of entries that outlive the process; None for no disk tier.
        spill_budget: bytes that the files in ``spill_dir`` may take.
        spill_lag: entries that may be unwritten before a step waits for one.
        plan: retention plan; None keeps every unit.
        element: how a retained element is stored.
        ends: whether the states at which requests end are kept, beside those at boundaries.
    """

    host_budget: int | None = None
    spill_dir: Path | None = None
    spill_budget: int = 20 << 30
    spill_lag: int = 4
    plan: Path | None = None
    element: Element = "full"
    ends: bool = True

    @classmethod
    def parse(cls, additional_config: object) -> TierConfig:
        """Read the section, strictly: what is misspelt, of a wrong type or out of range is refused.

        Raises:
            ConfigError: there is no section, or something in it cannot be used.
        """
        section = _section(additional_config)
        if not isinstance(section, Mapping):
            raise ConfigError(
                f"the connector needs its settings: --additional-config '{{\"{SECTION}\": {{...}}}}', seen {section!r}"
            )
        named = {name: value for name, value in section.items() if name != DECODE}
        _check_names(SECTION, named, cls, DECODE)
        values: dict[str, Any] = {name: _READ[name](name, value) for name, value in named.items()}
        config = cls(**values)
        if config.host_budget is None and config.spill_dir is None:
            raise ConfigError(f"{SECTION}: name a host_budget, a spill_dir, or both")
        return config


@dataclass(frozen=True)
class DecodeConfig:
    """Deferred decode in vLLM's recurrent layers.

    Attributes:
        interval: merge interval M, 2 to 64: a state is written every M tokens, and a log holds M - 1.
    """

    interval: int

    @classmethod
    def parse(cls, additional_config: object) -> DecodeConfig | None:
        """Read the section's ``decode`` object; None where nothing asks for it.

        Raises:
            ConfigError: something in it cannot be used.
        """
        section = _section(additional_config)
        if section is None:
            return None
        if not isinstance(section, Mapping):
            raise ConfigError(f"{SECTION} is {section!r}; wanted an object")
        if DECODE not in section:
            return None
        decode = section[DECODE]
        if not isinstance(decode, Mapping) or "interval" not in decode:
            raise ConfigError(f'{SECTION}.{DECODE} is {decode!r}; wanted {{"interval": 2 to {LONGEST_INTERVAL}}}')
        _check_names(f"{SECTION}.{DECODE}", decode, cls)
        interval = decode["interval"]
        if type(interval) is not int or not 2 <= interval <= LONGEST_INTERVAL:
            raise ConfigError(f"{SECTION}.{DECODE}.interval is {interval!r}; wanted 2 to {LONGEST_INTERVAL}")
        return cls(interval)


def has_tier_settings(additional_config: object) -> bool:
    """Whether the section sets up the checkpoint tier."""
    section = _section(additional_config)
    return isinstance(section, Mapping) and bool(set(section) - {DECODE})


def _section(additional_config: object) -> object:
    return additional_config.get(SECTION) if isinstance(additional_config, Mapping) else None


def _check_names(where: str, named: Mapping[str, Any], cls: type[Any], *others: str) -> None:
    known = {field.name for field in fields(cls)} | set(others)
    if unknown := sorted(set(named) - known):
        raise ConfigError(f"{where}: unknown settings {unknown}; known are {sorted(known)}")


def _count(name: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ConfigError(f"{SECTION}.{name} is {value!r}; wanted an integer that is not negative")
    return value


def _path(name: str, value: Any) -> Path:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{SECTION}.{name} is {value!r}; wanted a path")
    return Path(value).expanduser()


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{SECTION}.{name} is {value!r}; wanted true or false")
    return value


def _element(name: str, value: Any) -> Element:
    for element in get_args(Element):
        if value == element:
            return element  # type: ignore[no-any-return]
    raise ConfigError(f"{SECTION}.{name} is {value!r}; wanted one of {', '.join(get_args(Element))}")


_READ = {
    "host_budget": _count,
    "spill_dir": _path,
    "spill_budget": _count,
    "spill_lag": _count,
    "plan": _path,
    "element": _element,
    "ends": _flag,
}
