"""Reads one reply while it is generated."""

from __future__ import annotations

from collections.abc import Iterable

from holdover.server.tools.events import CallArguments, CallStart, Content, Event, Reasoning
from holdover.server.tools.parser import ToolParser
from holdover.server.tools.reasoning import Thinking


class ReplyReader:
    """Takes text; hands out what it is. The events of a whole reply do not depend on how it was cut into pieces.

    Args:
        thinking: splits thoughts off; None where there are none.
        calls: finds calls; None where there are none.
        most_calls: calls to hand out, the others are dropped; None for all.
    """

    def __init__(
        self, thinking: Thinking | None = None, calls: ToolParser | None = None, *, most_calls: int | None = None
    ) -> None:
        self._thinking = thinking
        self._calls = calls
        self._most_calls = most_calls

    @property
    def num_calls(self) -> int:
        """Calls so far."""
        return self._calls.count if self._calls is not None else 0

    def push(self, text: str) -> list[Event]:
        """Take text; what is certain of it."""
        return self._sort(self._thinking.push(text) if self._thinking is not None else [(False, text)])

    def finish(self) -> list[Event]:
        """End of text: what was held back."""
        events = self._sort(self._thinking.finish()) if self._thinking is not None else []
        return events + self._wanted(self._calls.finish() if self._calls is not None else [])

    def _sort(self, pieces: Iterable[tuple[bool, str]]) -> list[Event]:
        events: list[Event] = []
        for is_thought, text in pieces:
            if is_thought:
                events.append(Reasoning(text))
            elif self._calls is not None:
                events += self._wanted(self._calls.push(text))
            elif text:
                events.append(Content(text))
        return events

    def _wanted(self, events: list[Event]) -> list[Event]:
        most = self._most_calls
        if most is None:
            return events
        return [event for event in events if not isinstance(event, CallStart | CallArguments) or event.index < most]
