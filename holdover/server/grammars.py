"""The grammar of a whole reply: a thought that was begun, then an answer or calls."""

from __future__ import annotations

from collections.abc import Sequence

from holdover.engine.grammar import Grammar
from holdover.engine.prepare import Preparer
from holdover.errors import RequestError
from holdover.server.tools import Tool
from holdover.server.tools.parser import Terminal, ToolParser
from holdover.server.tools.reasoning import CLOSE

# a text of any length, up to what comes next in its rule
_ANY = "/(?s:.*)/"


def reply_grammar(
    answer: Grammar | None, calls: Grammar | None, terminal: Terminal, *, in_thought: bool
) -> Grammar | None:
    """What a reply must match; None for anything.

    Args:
        answer: what an answer must match; None where there must not be one.
        calls: what calls must match; None where there must be none.
        terminal: how marks are written in grammars.
        in_thought: whether the reply begins within a thought, of which nothing is demanded but an end.
    """
    parts = [(name, part) for name, part in (("answer", answer), ("calls", calls)) if part is not None]
    if not parts:
        return None
    main = parts[0][1]
    if len(parts) == 1 and not in_thought:
        return main
    either = " | ".join(f"@{name}" for name, _ in parts)
    if not in_thought:
        text = f"start: {either}\n"
    elif terminal(CLOSE) == CLOSE:
        text = f"start: {_ANY} {CLOSE} /\\n{{0,2}}/ ({either})\n"
    else:
        text = f"start: thought /\\n{{0,2}}/ ({either})\nthought[suffix={terminal(CLOSE)}]: {_ANY}\n"
    return Grammar("lark", text, main.param, tuple(parts))


def calls_grammar(
    prepare: Preparer, parser: type[ToolParser], tools: Sequence[Tool], terminal: Terminal, *, parallel: bool
) -> Grammar:
    """What replies that only call tools must match.

    Raises:
        RequestError: a tool's parameters are no schema that can be followed; the message says where.
    """
    grammar = Grammar("lark", parser.rules(tools, terminal, parallel=parallel), "tool_choice")
    try:
        prepare.check_grammar(grammar)
    except RequestError as error:
        if error.code != "unsupported_parameter":
            for tool in tools:
                prepare.check_grammar(Grammar("json", tool.argument_json, f"tools.{tool.name}.parameters"))
        raise
    return grammar
