"""Calls as Hermes and Qwen write them: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""

from __future__ import annotations

from collections.abc import Sequence

from holdover.server.tools.definitions import Tool
from holdover.server.tools.objects import ObjectParser, object_rule
from holdover.server.tools.parser import Terminal, call_rules

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(ObjectParser):
    """One object between two marks."""

    sign = OPEN
    marks = (OPEN, CLOSE)

    @classmethod
    def rules(cls, tools: Sequence[Tool], terminal: Terminal, *, parallel: bool) -> str:
        """Calls on lines of their own."""
        first, last = f'{terminal(OPEN)} "\\n"', f'"\\n" {terminal(CLOSE)}'
        calls = [f"{first} {object_rule(tool)} {last}" for tool in tools]
        return call_rules(calls, between='"\\n"', parallel=parallel)

    def _opened(self) -> bool:
        if not self._pending.skip_space():
            return False
        return self._begin() if self._pending.text.startswith("{") else self._refuse()

    def _written(self) -> bool:
        # a brace too many is a common slip
        text = self._pending.text.lstrip("} \n")
        if CLOSE.startswith(text) and text != CLOSE:
            return False
        self._pending.text = text.removeprefix(CLOSE)
        self._state = self._outside
        return True
