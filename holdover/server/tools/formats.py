"""How a model's replies are written, found out from its chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdover.errors import RequestError
from holdover.server.tools.definitions import Tool
from holdover.server.tools.granite import GraniteParser
from holdover.server.tools.hermes import HermesParser
from holdover.server.tools.kimi import KimiParser
from holdover.server.tools.parser import ToolParser
from holdover.server.tools.reader import ReplyReader
from holdover.server.tools.reasoning import CLOSE, OPEN, Thinking
from holdover.server.tools.xml import XmlParser

# the first whose sign the template has: what Qwen3-Coder writes has Hermes' sign too
PARSERS: tuple[type[ToolParser], ...] = (KimiParser, XmlParser, GraniteParser, HermesParser)


@dataclass(frozen=True)
class ReplyFormat:
    """How replies are written.

    Attributes:
        parser: finds calls; None where there can be none, or they are written in a way that is not known here.
        thinks: whether replies may have thoughts.
        knows_tools: whether the template tells the model of tools.
        takes_text: whether the template writes the arguments of earlier calls as they were written.
    """

    parser: type[ToolParser] | None
    thinks: bool
    knows_tools: bool
    takes_text: bool

    @classmethod
    def of(cls, template: str) -> ReplyFormat:
        """The format of the replies to what ``template`` renders."""
        return cls(
            parser=next((parser for parser in PARSERS if parser.sign in template), None),
            thinks=CLOSE in template,
            knows_tools="tools" in template,
            takes_text="arguments is string" in template,
        )

    def check_tools(self) -> type[ToolParser]:
        """The parser of calls.

        Raises:
            RequestError: the model cannot be told of tools, or its calls cannot be read.
        """
        if not self.knows_tools:
            raise RequestError(
                "this model's chat template knows no tools: leave them out", param="tools", code="unsupported_parameter"
            )
        if self.parser is None:
            known = ", ".join(parser.sign for parser in PARSERS)
            raise RequestError(
                f"this model's chat template writes calls in a way that is not known here (known are {known})",
                param="tools",
                code="unsupported_parameter",
            )
        return self.parser

    def reader(self, tools: Sequence[Tool], *, in_thought: bool, parallel: bool = True) -> ReplyReader:
        """A reader of one reply.

        Args:
            tools: the tools that the model was told of.
            in_thought: whether the prompt ends within a thought.
            parallel: whether there may be more than one call.
        """
        thinking = Thinking(opened=in_thought) if self.thinks else None
        calls = self.parser({tool.name: tool for tool in tools}) if self.parser is not None and tools else None
        return ReplyReader(thinking, calls, most_calls=None if parallel else 1)


def ends_in_thought(text: str) -> bool:
    """Whether a rendered prompt leaves the model in a thought that it has begun."""
    return text.rstrip().endswith(OPEN)
