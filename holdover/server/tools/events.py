"""What a piece of a reply turns out to be, and the whole that the pieces add up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """Text that the model thinks."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A call of a tool begins.

    Attributes:
        index: its number in the reply, from 0.
        id: by which its result refers to it.
        name: the function's name.
    """

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """A further piece of a call's arguments, which together are JSON."""

    index: int
    text: str


Event = Content | Reasoning | CallStart | CallArguments


@dataclass
class Call:
    """A whole call."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class Message:
    """A whole reply."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Message:
        """What the events add up to."""
        message = cls()
        for event in events:
            match event:
                case Content(text):
                    message.content += text
                case Reasoning(text):
                    message.reasoning += text
                case CallStart(_, id_, name):
                    message.calls.append(Call(id_, name))
                case CallArguments(index, text):
                    message.calls[index].arguments += text
        return message
