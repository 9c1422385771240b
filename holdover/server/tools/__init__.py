"""Replies of models that think and call tools, from the text that they generate to what the API calls it."""

from holdover.server.tools.definitions import Tool, ToolChoice
from holdover.server.tools.events import Call, CallArguments, CallStart, Content, Event, Message, Reasoning
from holdover.server.tools.formats import ReplyFormat
from holdover.server.tools.reader import ReplyReader

__all__ = [
    "Call",
    "CallArguments",
    "CallStart",
    "Content",
    "Event",
    "Message",
    "Reasoning",
    "ReplyFormat",
    "ReplyReader",
    "Tool",
    "ToolChoice",
]
