"""What ``strict`` adds to a JSON schema: objects have no properties but those that it names, unless it says so."""

from __future__ import annotations

from typing import Any

_MAPS = ("properties", "$defs", "definitions", "patternProperties")
_LISTS = ("anyOf", "oneOf", "prefixItems")


def closed(schema: Any) -> Any:
    """The schema with every object closed that names properties and does not say whether there may be others.

    Parts of ``allOf`` are left alone: closed one by one, they would forbid each other's properties.
    """
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    if "properties" in made:
        made.setdefault("additionalProperties", False)
    for keyword in _MAPS:
        if isinstance(inner := made.get(keyword), dict):
            made[keyword] = {name: closed(one) for name, one in inner.items()}
    for keyword in _LISTS:
        if isinstance(inner := made.get(keyword), list):
            made[keyword] = [closed(one) for one in inner]
    if "items" in made:
        made["items"] = closed(made["items"])
    return made
