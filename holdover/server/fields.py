"""Fields that come in several forms, each turned into one. What is wrong is said by a ValueError."""

from __future__ import annotations

import json
from typing import Any

from holdover.engine.grammar import Grammar
from holdover.server import composing
from holdover.server.strict import closed
from holdover.server.tools.definitions import NamedChoice, ToolChoice

MAX_STOPS = 4
_CHOICES: tuple[ToolChoice, ...] = ("none", "auto", "required")


def stops(value: object) -> object:
    """``stop``: a list of strings."""
    found = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(found, list) or len(found) > MAX_STOPS or not all(isinstance(stop, str) for stop in found):
        raise ValueError(f"must be a string or a list of at most {MAX_STOPS} strings")
    return found


def prompts(value: object) -> object:
    """``prompt``: a list of prompts, each a string or token ids."""
    several = value if isinstance(value, list) and value and isinstance(value[0], str | list) else [value]
    for one in several:
        if not isinstance(one, str) and not (isinstance(one, list) and all(type(item) is int for item in one)):
            raise ValueError("must be a string, a list of token ids, or a list of those")
    return several


def content(value: object) -> tuple[str | composing.ChunkText, ...]:
    """A message's ``content``: its text, and between it what is marked as chunks."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of text parts")
    return tuple(map(composing.part, value))


def logit_bias(value: object) -> object:
    """``logit_bias``: pairs of a token and its bias."""
    if not isinstance(value, dict):
        raise ValueError("must be an object of token ids and biases")
    pairs = []
    for token, bias in value.items():
        if not token.isascii() or not token.isdigit():
            raise ValueError(f"its keys must be token ids, got {token[:40]!r}")
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise ValueError(f"the bias of token {token[:40]} must be a number")
        pairs.append((int(token[:40]), float(bias)))
    return tuple(pairs)


def tool_choice(value: object) -> object:
    """``tool_choice``: a word, or the function that must be called."""
    if isinstance(value, dict):
        return NamedChoice.model_validate(value)
    if value not in _CHOICES:
        words = ", ".join(map(repr, _CHOICES))
        raise ValueError(f"must be one of {words}, or name a function, got {str(value)[:80]!r}")
    return value


def response_format(value: object) -> object:
    """``response_format``: the grammar that it stands for, or None for text."""
    if not isinstance(value, dict):
        raise ValueError("must be an object with a 'type'")
    kind, wanted = value.get("type"), {"type"}
    if kind == "json_schema":
        wanted |= {"json_schema"}
    elif kind not in ("text", "json_object"):
        raise ValueError(f"type must be 'text', 'json_object' or 'json_schema', got {str(kind)[:80]!r}")
    _refuse_others(value, wanted)
    if kind == "text":
        return None
    schema = {"type": "object"} if kind == "json_object" else _schema(value.get("json_schema"))
    where = "response_format.json_schema.schema" if kind == "json_schema" else "response_format"
    return Grammar("json", json.dumps(schema), where)


def _schema(value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("schema"), dict):
        raise ValueError("json_schema must be an object with an object in 'schema'")
    _refuse_others(value, {"name", "description", "schema", "strict"})
    if not isinstance(value.get("name"), str):
        raise ValueError("json_schema needs a string in 'name'")
    schema: dict[str, Any] = value["schema"]
    return dict(closed(schema)) if value.get("strict") else schema


def _refuse_others(value: dict[str, Any], known: set[str]) -> None:
    if unknown := value.keys() - known:
        raise ValueError(f"unknown field: {min(unknown)}")
