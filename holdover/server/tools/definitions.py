"""Tools as requests define them, and which of them a reply must call."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from holdover.errors import RequestError
from holdover.server.strict import closed

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class Function(_Strict):
    """One function.

    What its parameters and ``strict`` say holds where a call is required; elsewhere arguments are as the model writes
    them.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"must be 1 to 64 letters, digits, dots, dashes or underscores, got {name[:80]!r}")
        return name


class Tool(_Strict):
    """One tool. There are no others than functions."""

    type: Literal["function"]
    function: Function

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.name

    @property
    def argument_schema(self) -> dict[str, Any]:
        """The schema of its arguments."""
        parameters = self.function.parameters or {"type": "object"}
        return dict(closed(parameters)) if self.function.strict else parameters

    @property
    def argument_json(self) -> str:
        """That schema as JSON."""
        return json.dumps(self.argument_schema)

    def for_template(self) -> dict[str, Any]:
        """The tool as it was sent."""
        return self.model_dump(exclude_unset=True)


class _Named(_Strict):
    name: str


class NamedChoice(_Strict):
    """A function that must be called."""

    type: Literal["function"]
    function: _Named


ToolChoice = Literal["none", "auto", "required"] | NamedChoice


class CallFunction(_Strict):
    """What an earlier reply called."""

    name: str
    arguments: str


class PastCall(_Strict):
    """A call of an earlier reply, as clients send it back."""

    id: str
    type: Literal["function"] = "function"
    function: CallFunction
    # some clients keep the number that it had in a stream
    index: int | None = Field(None, exclude=True)

    def for_template(self, *, as_text: bool) -> dict[str, Any]:
        """The call as chat templates know it.

        Args:
            as_text: whether the template takes the arguments as they were written; else it gets what they mean.

        Raises:
            RequestError: they mean nothing.
        """
        dumped = self.model_dump()
        if not as_text:
            dumped["function"]["arguments"] = self._arguments()
        return dumped

    def _arguments(self) -> dict[str, Any]:
        try:
            arguments = json.loads(self.function.arguments or "{}")
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            raise RequestError(
                f"the arguments of call {self.id[:80]!r} must be a JSON object for this model's chat template",
                param="messages",
            )
        return arguments


def repeated(names: Iterable[str]) -> str | None:
    """The first name that comes twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
