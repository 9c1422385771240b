"""JSON that arrives in pieces: where a value ends, and calls of the form ``{"name": ..., "arguments": {...}}``."""

from __future__ import annotations

import json
import re

from holdover.server.tools.events import CallArguments, CallStart, Event


class ValueEnd:
    """Finds where one JSON object or array ends, without checking what is in it."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def find(self, text: str) -> int | None:
        """How much of the next piece of text belongs to the value; None for all of it and more to come."""
        for i, character in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return i + 1
        return None


# a call as models write it, up to the arguments; another order is understood, but only once it is whole
_HEAD = re.compile(r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')


class CallObject:
    """One call that is being written, from its opening brace on.

    Args:
        index: its number in the reply.
        id: its id.
    """

    def __init__(self, index: int, id: str) -> None:
        self.text = ""
        self.index = index
        self._id = id
        self._end = ValueEnd()
        # arguments that are handed out while they arrive
        self._arguments: ValueEnd | None = None
        self._given = 0

    def push(self, text: str) -> tuple[list[Event], str | None]:
        """Take text; what is certain of the call, and the text after it once it has ended.

        A call that turns out not to be one has no events at all.
        """
        end = self._end.find(text)
        self.text += text if end is None else text[:end]
        events: list[Event] = []
        if not self._given:
            events += self._open()
        events += self._go_on()
        if end is None:
            return events, None
        return events if self._given else self._whole(), text[end:]

    def _open(self) -> list[Event]:
        head = _HEAD.match(self.text)
        if head is None or (name := _string(head[1])) is None:
            return []
        self._arguments, self._given = ValueEnd(), head.end()
        return [CallStart(self.index, self._id, name)]

    def _go_on(self) -> list[Event]:
        if self._arguments is None:
            return []
        piece = self.text[self._given :]
        end = self._arguments.find(piece)
        self._given = len(self.text)
        if end is not None:
            # what follows is the end of the call itself
            piece, self._arguments = piece[:end], None
        return [CallArguments(self.index, piece)] if piece else []

    def _whole(self) -> list[Event]:
        try:
            call = json.loads(self.text)
        except ValueError:
            return []
        name = call.get("name") if isinstance(call, dict) else None
        if not isinstance(name, str):
            return []
        arguments = call.get("arguments", call.get("parameters"))
        # some models quote the arguments once more
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
        return [CallStart(self.index, self._id, name), CallArguments(self.index, text)]


def _string(text: str) -> str | None:
    try:
        return str(json.loads(text))
    except ValueError:
        return None
