"""What a chat's reply may be: an answer, calls of tools or either, and how the model is told and read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdover.engine.grammar import Grammar
from holdover.engine.prepare import Preparer
from holdover.engine.text import Decoder
from holdover.server.grammars import calls_grammar, reply_grammar
from holdover.server.schemas import ChatRequest
from holdover.server.tools import ReplyFormat, ReplyReader
from holdover.server.tools.definitions import NamedChoice
from holdover.server.tools.formats import ends_in_thought
from holdover.server.tools.parser import quoted
from holdover.server.tools.reasoning import CLOSE, OPEN

# more tokens than any way to write the mark of a thought
_TAIL = 16
# what keeps a token from being chosen
_NEVER = -100.0


class Marks(Protocol):
    """The part of a tokenizer that knows its marks."""

    @property
    def verbatim(self) -> Decoder:
        """Turns ids into text with special tokens left in."""

    def chat_template(self, *, tools: bool) -> str:
        """Text of the template that renders conversations."""

    def is_special(self, text: str) -> bool:
        """Whether ``text`` is a special token."""

    def only_token(self, text: str) -> int | None:
        """The token that all of ``text`` is, if it is one."""


@dataclass(frozen=True)
class ReplyPlan:
    """How one chat is rendered, constrained and read.

    Attributes:
        asked: the request.
        tokenizer: the model's.
        format: how the model writes replies.
        options: what the template is given beside the messages.
        bias: what is added to the logits of marks.
    """

    asked: ChatRequest
    tokenizer: Marks
    format: ReplyFormat
    options: dict[str, Any]
    bias: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, asked: ChatRequest, tokenizer: Marks) -> ReplyPlan:
        """The plan of a request.

        Raises:
            RequestError: there are tools, and the model cannot be told of them or its calls cannot be read.
        """
        found = ReplyFormat.of(tokenizer.chat_template(tools=bool(asked.tools)))
        if not asked.tools:
            return cls(asked, tokenizer, found, {})
        parser = found.check_tools()
        told = {"tools": [tool.for_template() for tool in asked.tools]}
        if asked.tool_choice != "none":
            return cls(asked, tokenizer, found, told)
        # the prompt stays that of the turns before, so that the cache has it; only the mark of a call is kept away
        mark = tokenizer.only_token(parser.marks[0])
        if mark is None:
            return cls(asked, tokenizer, found, {})
        return cls(asked, tokenizer, found, told, ((mark, _NEVER),))

    @property
    def may_call(self) -> bool:
        """Whether calls are looked for."""
        return bool(self.asked.tools) and self.asked.tool_choice != "none"

    @property
    def is_verbatim(self) -> bool:
        """Whether special tokens must stay in the text, since marks are among them."""
        marks = [OPEN, CLOSE] if self.format.thinks else []
        if self.may_call and self.format.parser is not None:
            marks += self.format.parser.marks
        return any(map(self.tokenizer.is_special, marks))

    def is_in_thought(self, ids: Sequence[int]) -> bool:
        """Whether the rendered prompt leaves the model in a thought."""
        return self.format.thinks and ends_in_thought(self.tokenizer.verbatim.decode(ids[-_TAIL:]))

    def grammar(self, prepare: Preparer, *, in_thought: bool) -> Grammar | None:
        """What the reply must match.

        Raises:
            RequestError: a schema or grammar in the request cannot be used; the message says where it is wrong.
        """
        answer, calls = self.asked.grammar, None
        if answer is not None:
            # by itself first: as a part of something larger, its faults would be reported at other places
            prepare.check_grammar(answer)
        is_required = self.may_call and self.asked.tool_choice != "auto"
        if is_required or (self.may_call and answer is not None):
            calls = self._calls(prepare)
        return reply_grammar(None if is_required else answer, calls, self._terminal, in_thought=in_thought)

    def reader(self, *, in_thought: bool) -> ReplyReader:
        """A reader of one reply."""
        tools = self.asked.tools if self.may_call else []
        return self.format.reader(tools, in_thought=in_thought, parallel=self.asked.parallel_tool_calls)

    def _calls(self, prepare: Preparer) -> Grammar:
        choice, tools = self.asked.tool_choice, self.asked.tools
        parallel = self.asked.parallel_tool_calls
        if isinstance(choice, NamedChoice):
            tools, parallel = [tool for tool in tools if tool.name == choice.function.name], False
        return calls_grammar(prepare, self.format.check_tools(), tools, self._terminal, parallel=parallel)

    def _terminal(self, mark: str) -> str:
        return mark if self.tokenizer.is_special(mark) else quoted(mark)
