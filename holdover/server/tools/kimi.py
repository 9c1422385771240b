"""Calls as Kimi writes them: a section of calls, each ``functions.NAME:NUMBER``, a mark, and the arguments."""

from __future__ import annotations

from collections.abc import Sequence

from holdover.server.tools.definitions import Tool
from holdover.server.tools.events import CallArguments, CallStart
from holdover.server.tools.parser import Terminal, ToolParser, call_rules, json_rule, quoted

OPEN, CLOSE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


class KimiParser(ToolParser):
    """Arguments are handed out as they are written. The call's id is the model's, which its template writes again."""

    sign = OPEN
    marks = (OPEN, CLOSE, CALL, ARGUMENTS, END)

    @classmethod
    def rules(cls, tools: Sequence[Tool], terminal: Terminal, *, parallel: bool) -> str:
        """One section."""
        begin, arguments, end = map(terminal, (CALL, ARGUMENTS, END))
        ids = [f"{quoted(f'functions.{tool.name}:')} /[0-9]{{1,3}}/" for tool in tools]
        values = [json_rule(tool.argument_schema) for tool in tools]
        calls = [f"{begin} {id_} {arguments} {value} {end}" for id_, value in zip(ids, values, strict=True)]
        return call_rules(calls, first=terminal(OPEN), last=terminal(CLOSE), parallel=parallel)

    def _outside(self) -> bool:
        text, found = self._pending.until(OPEN)
        self._say(text)
        if found:
            self._state = self._section
        return found

    def _section(self) -> bool:
        """Before a call, or at the end of the section."""
        if not self._pending.skip_space():
            return False
        text = self._pending.text
        for mark, state in ((CALL, self._named), (CLOSE, self._outside)):
            if text.startswith(mark):
                self._pending.text, self._state = text.removeprefix(mark), state
                return True
            if mark.startswith(text):
                return False
        # text where a call should be
        self._state = self._outside
        return True

    def _named(self) -> bool:
        """In the name of a call."""
        name, is_whole = self._pending.until(ARGUMENTS)
        if not is_whole:
            # names are short: what was taken is put back
            self._pending.text = name + self._pending.text
            return False
        id_ = name.strip()
        function = id_.removeprefix("functions.").rpartition(":")[0] or id_
        self._call([CallStart(self.count, id_, function)])
        self._state = self._written
        return True

    def _written(self) -> bool:
        """In the arguments of a call."""
        text, ended = self._pending.until(END)
        if text:
            self._call([CallArguments(self.count - 1, text)])
        if ended:
            self._state = self._section
        return ended

    def _close(self) -> None:
        if self._state == self._outside:
            self._say(self._pending.all())
        elif self._state == self._written and self._pending.text:
            self._call([CallArguments(self.count - 1, self._pending.all())])
