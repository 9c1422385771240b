"""Checked access to a raw configuration: every error names the key, the value seen and what is wanted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdover.errors import ConfigError


class Fields:
    """Typed reads of a configuration dict whose values may be missing or of any type.

    A key that is null counts as missing, as it does for the hosts. Several names mean aliases, the first one set wins.

    Args:
        values: the raw dict.
        path: what stands before a key in messages, for example ``text_config.``.
    """

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self._values = values
        self._path = path

    def get(self, *names: str) -> Any:
        """The value of the first of ``names`` that is set, or None."""
        return next((self._values[name] for name in names if self._values.get(name) is not None), None)

    def has(self, *names: str) -> bool:
        """Whether any of ``names`` is set."""
        return self.get(*names) is not None

    def nulled(self, name: str) -> bool:
        """Whether ``name`` is there and null, where that means something else than a missing key."""
        return name in self._values and self._values[name] is None

    def integer(self, *names: str, default: int | None = None, minimum: int = 1, maximum: int | None = None) -> int:
        """An integer between ``minimum`` and ``maximum``. Raises ConfigError otherwise."""
        wanted = f"an integer of at least {minimum}" + (f" and at most {maximum}" if maximum is not None else "")
        value = self._required(names, default, wanted)
        # json's true is a Python int
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.invalid(names, value, wanted)
        if value < minimum or (maximum is not None and value > maximum):
            raise self.invalid(names, value, wanted)
        return value

    def number(self, *names: str, default: float | None = None) -> float:
        """A finite number. Raises ConfigError otherwise."""
        value = self._required(names, default, "a finite number")
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise self.invalid(names, value, "a finite number")
        return float(value)

    def text(self, *names: str, default: str | None = None) -> str:
        """A string. Raises ConfigError otherwise."""
        value = self._required(names, default, "a string")
        if not isinstance(value, str):
            raise self.invalid(names, value, "a string")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false. Raises ConfigError otherwise."""
        value = self._required((name,), default, "true or false")
        if not isinstance(value, bool):
            raise self.invalid((name,), value, "true or false")
        return value

    def sequence(self, name: str) -> Sequence[Any]:
        """A list of anything. Raises ConfigError otherwise."""
        value = self._required((name,), None, "a list")
        if not isinstance(value, list | tuple):
            raise self.invalid((name,), value, "a list")
        return value

    def section(self, name: str) -> Fields:
        """The nested dict ``name``, empty where it is missing. Raises ConfigError where it is something else."""
        value = self.get(name)
        if value is None:
            return Fields({}, f"{self._path}{name}.")
        if not isinstance(value, Mapping):
            raise self.invalid((name,), value, "an object")
        return Fields(value, f"{self._path}{name}.")

    def invalid(self, names: Sequence[str], value: object, wanted: str) -> ConfigError:
        """The error to raise for a value that is set and unusable."""
        name = next((name for name in names if self._values.get(name) is not None), names[0])
        shown = repr(value)
        # a wrong list can be thousands of entries long
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return ConfigError(f"config: {self._path}{name} is {shown}; wanted {wanted}")

    def _required(self, names: Sequence[str], default: object, wanted: str) -> Any:
        value = self.get(*names)
        if value is not None:
            return value
        if default is not None:
            return default
        keys = " or ".join(f"{self._path}{name}" for name in names)
        raise ConfigError(f"config: {keys} is missing (or null); wanted {wanted}")
