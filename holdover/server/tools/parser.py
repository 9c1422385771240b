"""What the parsers of all formats share."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar
from uuid import uuid4

from holdover.engine.constraints import JSON_STYLE
from holdover.server.tools.definitions import Tool
from holdover.server.tools.events import CallStart, Content, Event
from holdover.server.tools.pending import Pending

# a mark of the format as a terminal of a grammar
Terminal = Callable[[str], str]


class ToolParser(ABC):
    """Finds calls in one reply.

    White space between calls, and before the first one, is nobody's text.

    Args:
        tools: the tools that the model was told of, by name.
    """

    # what a template of this format has in it, and no other
    sign: ClassVar[str]
    # what calls are written with; the first is what a call begins with
    marks: ClassVar[tuple[str, ...]]

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.tools = tools
        self.count = 0
        self._pending = Pending()
        self._events: list[Event] = []
        self._space = ""
        self._is_after_call = False
        # takes what is certain of the pending text, and says whether there may be more
        self._state: Callable[[], bool] = self._outside

    def push(self, text: str) -> list[Event]:
        """Take text; what is certain of it."""
        self._pending.push(text)
        while self._state():
            pass
        return self._flush()

    def finish(self) -> list[Event]:
        """End of text: what was held back."""
        self._close()
        if self._space and not self.count:
            self._events.append(Content(self._space))
        return self._flush()

    @classmethod
    @abstractmethod
    def rules(cls, tools: Sequence[Tool], terminal: Terminal, *, parallel: bool) -> str:
        """A grammar, whose start is ``start``, of replies that consist of calls of these tools."""

    @abstractmethod
    def _outside(self) -> bool:
        """Look for the first mark."""

    @abstractmethod
    def _close(self) -> None:
        """Take the rest of the pending text."""

    def _say(self, text: str) -> None:
        """Text outside calls."""
        said = self._space + text
        if self._is_after_call:
            said = said.lstrip()
        kept = said.rstrip()
        self._space = said[len(kept) :]
        if kept:
            self._is_after_call = False
            self._events.append(Content(kept))

    def _call(self, events: Iterable[Event]) -> None:
        """Events of the call that is being written."""
        for event in events:
            if isinstance(event, CallStart):
                self.count += 1
                self._space, self._is_after_call = "", True
            self._events.append(event)

    def _flush(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def json_rule(schema: dict[str, Any]) -> str:
    """The rule of a value of a schema."""
    return f"%json {json.dumps(schema | {'x-guidance': JSON_STYLE})}"


def quoted(text: str) -> str:
    """The rule of a text."""
    return json.dumps(text, ensure_ascii=False)


def new_id() -> str:
    """An id of a call."""
    return f"call_{uuid4().hex[:24]}"


def call_rules(
    calls: Sequence[str], *, first: str = '""', between: str = '""', last: str = '""', parallel: bool
) -> str:
    """Rules of one call or more.

    Args:
        calls: the body of the rule of each call that there may be.
        first: what stands before all calls.
        between: what stands between two.
        last: what stands after all.
        parallel: whether there may be more than one.
    """
    more = f" ({between} call)*" if parallel else ""
    names = [f"call{i}" for i in range(len(calls))]
    rules = [f"{name}: {body}" for name, body in zip(names, calls, strict=True)]
    return "\n".join([f"start: {first} call{more} {last}", f"call: {' | '.join(names)}", *rules]) + "\n"
