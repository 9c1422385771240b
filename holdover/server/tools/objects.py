"""Parsers of formats in which a call is a JSON object with a name and arguments."""

from __future__ import annotations

from abc import abstractmethod

from holdover.server.tools.definitions import Tool
from holdover.server.tools.parser import ToolParser, json_rule, new_id, quoted
from holdover.server.tools.values import CallObject


class ObjectParser(ToolParser):
    """Hands arguments out as they are written. What turns out to be no call is text."""

    _object: CallObject | None = None
    # what stood before the object, and belongs to the text with it if it is no call
    _lead = ""

    def _outside(self) -> bool:
        text, found = self._pending.until(self.marks[0])
        self._say(text)
        if found:
            self._lead, self._state = self.marks[0], self._opened
        return found

    @abstractmethod
    def _opened(self) -> bool:
        """Just after the first mark: look for an object."""

    @abstractmethod
    def _written(self) -> bool:
        """Just after an object."""

    def _begin(self) -> bool:
        """An object begins."""
        self._object, self._state = CallObject(self.count, new_id()), self._within
        return True

    def _within(self) -> bool:
        assert self._object is not None
        events, rest = self._object.push(self._pending.all())
        self._call(events)
        if rest is None:
            return False
        self._pending.text = rest
        self._state = self._written
        self._give_up_unless_called()
        return True

    def _refuse(self) -> bool:
        """There is no object."""
        self._say(self._lead)
        self._state = self._outside
        return True

    def _give_up_unless_called(self) -> None:
        if self._object is not None and self._object.index == self.count:
            self._say(self._lead + self._object.text)
            self._state = self._outside
        self._object = None

    def _close(self) -> None:
        if self._object is not None:
            self._give_up_unless_called()
        elif self._state == self._opened:
            self._say(self._lead + self._pending.all())
        elif self._state == self._outside:
            self._say(self._pending.all())


def object_rule(tool: Tool) -> str:
    """The rule of a call of one tool."""
    head = f'{{"name": {quoted(tool.name)}, "arguments": '
    return f'{quoted(head)} {json_rule(tool.argument_schema)} "}}"'
