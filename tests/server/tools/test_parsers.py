"""Replies of every format, whole and in pieces of any size."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdover.server.tools import CallArguments, CallStart, Event, Message, ReplyFormat, ReplyReader, Tool
from holdover.server.tools.formats import PARSERS
from holdover.server.tools.granite import GraniteParser
from holdover.server.tools.hermes import HermesParser
from holdover.server.tools.kimi import KimiParser
from holdover.server.tools.parser import ToolParser
from holdover.server.tools.reasoning import Thinking
from holdover.server.tools.xml import XmlParser

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}},
    "required": ["city"],
}
TOOL = Tool.model_validate({"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}})
Calls = list[tuple[str, dict[str, Any]]]
TRICKY: dict[str, Any] = {"city": 'a "}]</tool_call>\\ {[ é\n<|tool_call_end', "days": -3, "tags": [{"x": "}"}, None]}


def hermes(calls: Calls) -> str:
    objects = (json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls)
    return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)


def granite(calls: Calls) -> str:
    return "<|tool_call|>" + json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])


def kimi(calls: Calls) -> str:
    written = (
        f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{json.dumps(arguments)}<|tool_call_end|>"
        for i, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{''.join(written)}<|tool_calls_section_end|>"


def xml(calls: Calls) -> str:
    def parameter(name: str, value: Any) -> str:
        return f"<parameter={name}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"

    def call(name: str, arguments: dict[str, Any]) -> str:
        inner = "".join(parameter(*one) for one in arguments.items())
        return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"

    return "\n".join(call(*one) for one in calls)


FORMATS = {HermesParser: hermes, GraniteParser: granite, KimiParser: kimi, XmlParser: xml}
every_format = pytest.mark.parametrize("parser", FORMATS, ids=lambda parser: parser.__name__)


def pieces(text: str, seed: int | None) -> list[str]:
    if seed is None:
        return [text]
    draw, cut = random.Random(seed), [0]
    while cut[-1] < len(text):
        cut.append(cut[-1] + (1 if seed == 0 else draw.choice([1, 2, 3, 7, 20])))
    return [text[a:b] for a, b in pairwise(cut)]


def read(reader: ReplyReader, parts: Iterable[str]) -> list[Event]:
    return [event for part in parts for event in reader.push(part)] + reader.finish()


def reader_of(parser: type[ToolParser], thinking: Thinking | None = None) -> ReplyReader:
    return ReplyReader(thinking, parser({"weather": TOOL}))


def assert_calls(message: Message, calls: Calls) -> None:
    assert [(call.name, json.loads(call.arguments)) for call in message.calls] == calls
    assert len({call.id for call in message.calls}) == len(calls)


CASES: list[Calls] = [
    [("weather", {"city": "Paris"})],
    [("weather", {})],
    [("weather", {"city": "Oslo", "days": 2}), ("other", {"a": [1, {"b": None}], "c": "x"})],
]


@every_format
@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("calls", CASES, ids=["one", "bare", "two"])
def test_calls(parser: type[ToolParser], calls: Calls, seed: int | None) -> None:
    message = Message.of(read(reader_of(parser), pieces(FORMATS[parser](calls), seed)))
    assert_calls(message, calls)
    assert (message.content, message.reasoning) == ("", "")


@pytest.mark.parametrize("parser", [HermesParser, GraniteParser, KimiParser], ids=lambda parser: parser.__name__)
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_marks_within_arguments_are_text(parser: type[ToolParser], seed: int | None) -> None:
    calls: Calls = [("weather", TRICKY), ("weather", TRICKY)]
    assert_calls(Message.of(read(reader_of(parser), pieces(FORMATS[parser](calls), seed))), calls)


@every_format
@pytest.mark.parametrize("seed", [None, 0, 3])
def test_text_around_calls(parser: type[ToolParser], seed: int | None) -> None:
    calls: Calls = [("weather", {"city": "Paris"})]
    text = f"Let me look.\n\n{FORMATS[parser](calls)}\n\nDone <b>so</b>. "
    message = Message.of(read(reader_of(parser), pieces(text, seed)))
    assert_calls(message, calls)
    assert message.content == "Let me look.Done <b>so</b>."


@every_format
@pytest.mark.parametrize("text", ["", " ", "plain", "  a < b <tool or <|tool\n", "<", "1 <tool_cal"])
@pytest.mark.parametrize("seed", [None, 0])
def test_without_calls_text_is_kept_to_the_letter(parser: type[ToolParser], text: str, seed: int | None) -> None:
    message = Message.of(read(reader_of(parser), pieces(text, seed)))
    assert (message.content, message.calls) == (text, [])


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (HermesParser, "<tool_call>\nnot a call\n</tool_call>"),
        (HermesParser, '<tool_call>\n{"nome": "weather"}\n</tool_call>'),
        (HermesParser, '<tool_call>{"name": 7, "arguments": {}}</tool_call>'),
        (HermesParser, '<tool_call>{"name": "weather", '),
        (HermesParser, "so <tool_call>"),
        (GraniteParser, "<|tool_call|>none"),
        (GraniteParser, '<|tool_call|>[{"a": 1}'),
        (XmlParser, "<tool_call>\n<fun>"),
        (XmlParser, "<tool_call>\n<functi"),
    ],
)
@pytest.mark.parametrize("seed", [None, 0])
def test_what_is_no_call_is_text(parser: type[ToolParser], text: str, seed: int | None) -> None:
    message = Message.of(read(reader_of(parser), pieces(text, seed)))
    assert message.calls == []
    assert "".join(message.content.split()) == "".join(text.split())


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<tool_call>{"arguments": {"city": "x"}, "name": "weather"}</tool_call>', {"city": "x"}),
        ('<tool_call>{"name": "weather", "parameters": {"city": "x"}}</tool_call>', {"city": "x"}),
        ('<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"x\\"}"}</tool_call>', {"city": "x"}),
        ('<tool_call>{"name": "weather", "arguments": {"city": "x"}}}\n</tool_call>', {"city": "x"}),
        ('<tool_call>{"name": "weather", "arguments": {"city": "x"}}', {"city": "x"}),
        ('<tool_call>{"name": "weather"}</tool_call>', {}),
    ],
)
def test_slips_of_models_are_understood(text: str, arguments: dict[str, Any], seed: int | None) -> None:
    message = Message.of(read(reader_of(HermesParser), pieces(text, seed)))
    assert_calls(message, [("weather", arguments)])
    assert message.content == ""


@pytest.mark.parametrize("parser", [HermesParser, GraniteParser, KimiParser], ids=lambda parser: parser.__name__)
def test_arguments_arrive_while_they_are_written(parser: type[ToolParser]) -> None:
    text = FORMATS[parser]([("weather", {"city": "a very long name of a city"})])
    reader, seen = reader_of(parser), []
    for character in text[: text.index("very")]:
        seen += reader.push(character)
    assert isinstance(seen[0], CallStart)
    assert "".join(event.text for event in seen if isinstance(event, CallArguments)) == '{"city": "a '


def test_arguments_of_xml_arrive_one_by_one() -> None:
    text, reader = xml([("weather", {"city": "Paris", "days": 3})]), reader_of(XmlParser)
    first = reader.push(text[: text.index("<parameter=days")])
    assert [event.text for event in first if isinstance(event, CallArguments)] == ['{"city": "Paris"']


def test_cut_off_arguments_are_what_was_written() -> None:
    for parser in (HermesParser, GraniteParser, KimiParser):
        text = FORMATS[parser]([("weather", {"city": "Paris"})])
        message = Message.of(read(reader_of(parser), [text[: text.index("ris")]]))
        assert [call.arguments for call in message.calls] == ['{"city": "Pa']


def test_kimi_s_ids_are_the_model_s() -> None:
    message = Message.of(read(reader_of(KimiParser), [kimi([("weather", {}), ("weather", {})])]))
    assert [call.id for call in message.calls] == ["functions.weather:0", "functions.weather:1"]


@pytest.mark.parametrize(("value", "meant"), [("12", "12"), ("true", "true"), (" x\ny ", " x\ny "), ("", "")])
def test_xml_texts_are_texts_whatever_they_look_like(value: str, meant: str) -> None:
    text = f"<tool_call>\n<function=weather>\n<parameter=city>\n{value}\n</parameter>\n</function>\n</tool_call>"
    assert_calls(Message.of(read(reader_of(XmlParser), [text])), [("weather", {"city": meant})])


# thoughts

THOUGHTS = [
    ("<think>\nhm\nso\n</think>\n\nyes", False, "hm\nso", "yes"),
    ("\n<think>hm</think>yes\n", False, "hm", "yes\n"),
    ("hm\n</think>\n\nyes", True, "hm", "yes"),
    ("\n\nhm", True, "hm", ""),
    ("</think>\n\nyes", True, "", "yes"),
    ("<think></think>", False, "", ""),
    ("<think>\n\n</think>\n\nyes <think> no", False, "", "yes <think> no"),
    ("no thought </think> here", False, "", "no thought </think> here"),
    ("<thin", False, "", "<thin"),
    ("a </thin b", True, "a </thin b", ""),
    ("", False, "", ""),
]


@pytest.mark.parametrize(("text", "opened", "thought", "said"), THOUGHTS)
@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_thoughts(text: str, opened: bool, thought: str, said: str, seed: int | None) -> None:
    message = Message.of(read(ReplyReader(Thinking(opened=opened)), pieces(text, seed)))
    assert (message.reasoning, message.content) == (thought, said)


@every_format
@pytest.mark.parametrize("seed", [None, 0])
def test_calls_in_thoughts_are_thoughts(parser: type[ToolParser], seed: int | None) -> None:
    call = FORMATS[parser]([("weather", {"city": "x"})])
    text = f"maybe {call}\n</think>\n\nI look.\n{call}"
    message = Message.of(read(reader_of(parser, Thinking(opened=True)), pieces(text, seed)))
    assert message.reasoning == f"maybe {call}"
    assert message.content == "I look."
    assert_calls(message, [("weather", {"city": "x"})])


_SHREDS = ["<tool_call>", "</tool_call>", "<|tool_call|>", "[", "]", "{", "}", '"name": "weather"', '"arguments": ']
_SHREDS += [
    "<function=weather>",
    "</function>",
    "<parameter=city>",
    "</parameter>",
    "<think>",
    "</think>",
    "\n",
    " a",
    ",",
]
_SHREDS += list(KimiParser.marks)


@every_format
@given(shreds=st.lists(st.sampled_from(_SHREDS), max_size=14), seed=st.integers(0, 9), opened=st.booleans())
def test_any_text_reads_the_same_in_any_pieces(
    parser: type[ToolParser], shreds: list[str], seed: int, opened: bool
) -> None:
    text = "".join(shreds)

    def message(parts: list[str]) -> tuple[Any, ...]:
        whole = Message.of(read(reader_of(parser, Thinking(opened=opened)), parts))
        return whole.content, whole.reasoning, [(call.name, call.arguments) for call in whole.calls]

    assert message(pieces(text, seed)) == message([text])


# which format a template is of

TEMPLATES = {
    HermesParser: "{% if tools %}...within <tool_call></tool_call>: {{ tool_call.arguments | tojson }}{% endif %}",
    GraniteParser: "{% if tools %}...write <|tool_call|> followed by a list{% endif %}",
    KimiParser: "{% if tools %}<|tool_calls_section_begin|>{% if arguments is string %}{% endif %}{% endif %}",
    XmlParser: "{% if tools %}<tool_call>\n<function=example>\n</tool_call></think>{% endif %}",
}


def test_formats_of_templates() -> None:
    assert set(TEMPLATES) == set(PARSERS)
    for parser, template in TEMPLATES.items():
        found = ReplyFormat.of(template)
        assert (found.parser, found.knows_tools, found.check_tools()) == (parser, True, parser)
        assert found.thinks is ("</think>" in template)
        assert found.takes_text is ("is string" in template)
