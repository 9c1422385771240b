"""Calls as Granite 3 writes them: ``<|tool_call|>[{"name": ..., "arguments": {...}}, ...]``."""

from __future__ import annotations

from collections.abc import Sequence

from holdover.server.tools.definitions import Tool
from holdover.server.tools.objects import ObjectParser, object_rule
from holdover.server.tools.parser import Terminal, call_rules

OPEN = "<|tool_call|>"


class GraniteParser(ObjectParser):
    """A list of objects after a mark."""

    sign = OPEN
    marks = (OPEN,)

    @classmethod
    def rules(cls, tools: Sequence[Tool], terminal: Terminal, *, parallel: bool) -> str:
        """One list."""
        calls = [object_rule(tool) for tool in tools]
        return call_rules(calls, first=f'{terminal(OPEN)} "["', between='", "', last='"]"', parallel=parallel)

    def _opened(self) -> bool:
        if not self._pending.skip_space():
            return False
        if not self._pending.text.startswith("["):
            return self._refuse()
        self._pending.text = self._pending.text[1:]
        self._lead, self._state = f"{OPEN}[", self._listed
        return True

    def _listed(self) -> bool:
        """Before an object, or at the end of the list."""
        self._pending.text = self._pending.text.lstrip(", \n")
        if not self._pending.text:
            return False
        if self._pending.text.startswith("{"):
            return self._begin()
        self._pending.text = self._pending.text.removeprefix("]")
        self._state = self._outside
        return True

    def _written(self) -> bool:
        self._lead, self._state = "", self._listed
        return True
