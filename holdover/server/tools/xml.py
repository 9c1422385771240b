"""Calls as Qwen3-Coder and Qwen3.5 write them: ``<function=NAME>`` with ``<parameter=NAME>`` in it, in a tool call.

A value is written without quotes; whether it is a text or JSON, the schema of the tool says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from holdover.server.tools.definitions import Tool
from holdover.server.tools.events import CallArguments, CallStart
from holdover.server.tools.parser import Terminal, ToolParser, call_rules, json_rule, new_id, quoted

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"


class XmlParser(ToolParser):
    """Arguments are handed out one by one, each when it is whole."""

    sign = FUNCTION
    marks = (OPEN, CLOSE)

    _name = ""
    _num_arguments = 0

    @classmethod
    def rules(cls, tools: Sequence[Tool], terminal: Terminal, *, parallel: bool) -> str:
        """Calls on lines of their own, with parameters in the order of the schema."""
        calls, values = [], []
        for number, tool in enumerate(tools):
            parts = [terminal(OPEN), quoted(f"\n{FUNCTION}{tool.name}>\n")]
            for i, (name, schema, is_required) in enumerate(_parameters(tool)):
                head = quoted(f"{PARAMETER}{name}>\n")
                value, rule = f"v{number}x{i}", _value_rule(schema)
                values.append(f"{value}{rule}")
                parts.append(f"({head} {value}){'' if is_required else '?'}")
            calls.append(" ".join([*parts, quoted(f"{FUNCTION_END}\n"), terminal(CLOSE)]))
        return call_rules(calls, between='"\\n"', parallel=parallel) + "".join(f"{value}\n" for value in values)

    def _outside(self) -> bool:
        text, found = self._pending.until(OPEN)
        self._say(text)
        if found:
            self._state = self._opened
        return found

    def _opened(self) -> bool:
        """Just after the mark: a function, and nothing else."""
        text = self._pending.text.lstrip()
        if FUNCTION.startswith(text[: len(FUNCTION)]) and ">" not in text:
            return False
        if not text.startswith(FUNCTION):
            self._say(OPEN)
            self._state = self._outside
            return True
        name, _, self._pending.text = text.removeprefix(FUNCTION).partition(">")
        self._name, self._num_arguments = name.strip(), 0
        self._call([CallStart(self.count, new_id(), self._name)])
        self._state = self._within
        return True

    def _within(self) -> bool:
        """Before a parameter, or at the end of the function."""
        if not self._pending.skip_space():
            return False
        text = self._pending.text
        if text.startswith(PARAMETER):
            head, is_whole, rest = text.partition(PARAMETER_END)
            if is_whole:
                self._pending.text = rest
                self._argument(*head.removeprefix(PARAMETER).partition(">")[::2])
            return bool(is_whole)
        if PARAMETER.startswith(text) or (FUNCTION_END.startswith(text) and text != FUNCTION_END):
            return False
        self._pending.text = text.removeprefix(FUNCTION_END)
        self._end()
        self._state = self._ended
        return True

    def _ended(self) -> bool:
        if not self._pending.skip_space():
            return False
        text = self._pending.text
        if CLOSE.startswith(text) and text != CLOSE:
            return False
        self._pending.text = text.removeprefix(CLOSE)
        self._state = self._outside
        return True

    def _argument(self, name: str, value: str) -> None:
        value = value.removeprefix("\n").removesuffix("\n")
        written = f"{json.dumps(name.strip())}: {_as_json(value, self._schema(name.strip()))}"
        self._call([CallArguments(self.count - 1, f"{', ' if self._num_arguments else '{'}{written}")])
        self._num_arguments += 1

    def _end(self) -> None:
        self._call([CallArguments(self.count - 1, "}" if self._num_arguments else "{}")])

    def _schema(self, name: str) -> dict[str, Any]:
        tool = self.tools.get(self._name)
        known = {} if tool is None else {known: schema for known, schema, _ in _parameters(tool)}
        return known.get(name, {})

    def _close(self) -> None:
        if self._state == self._outside:
            self._say(self._pending.all())
        elif self._state == self._opened:
            self._say(OPEN + self._pending.all())


def _parameters(tool: Tool) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Name, schema and whether it is required, of each parameter."""
    whole = tool.function.parameters or {}
    shared = {name: whole[name] for name in ("$defs", "definitions") if name in whole}
    required = whole.get("required") or ()
    for name, schema in (whole.get("properties") or {}).items():
        yield name, (schema if isinstance(schema, dict) else {}) | shared, name in required


def _is_text(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "string"


def _value_rule(schema: dict[str, Any]) -> str:
    end = f"\n{PARAMETER_END}\n"
    if not _is_text(schema):
        return f": {json_rule(schema)} {quoted(end)}"
    if "enum" in schema:
        return f": ({' | '.join(quoted(str(value)) for value in schema['enum'])}) {quoted(end)}"
    return f"[suffix={quoted(end)}]: /(?s:.*)/"


def _as_json(value: str, schema: dict[str, Any]) -> str:
    if not _is_text(schema):
        try:
            return json.dumps(json.loads(value), ensure_ascii=False)
        except ValueError:
            pass
    return json.dumps(value, ensure_ascii=False)
