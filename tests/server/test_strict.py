"""What ``strict`` closes."""

from typing import Any

import pytest

from holdover.server.strict import closed

A = {"type": "object", "properties": {"a": {}}}
CLOSED = A | {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (A, CLOSED),
        (A | {"additionalProperties": True}, A | {"additionalProperties": True}),
        ({"type": "object"}, {"type": "object"}),
        ({"type": "array", "items": A}, {"type": "array", "items": CLOSED}),
        ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        ({"$defs": {"x": A}, "$ref": "#/$defs/x"}, {"$defs": {"x": CLOSED}, "$ref": "#/$defs/x"}),
        ({"allOf": [A, A]}, {"allOf": [A, A]}),
        (
            {"properties": {"b": A, "properties": True}},
            {"properties": {"b": CLOSED, "properties": True}, "additionalProperties": False},
        ),
    ],
)
def test_closed(schema: dict[str, Any], wanted: dict[str, Any]) -> None:
    before = str(schema)
    assert closed(schema) == wanted
    assert str(schema) == before
