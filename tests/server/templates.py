"""Chat templates that know tools, one a format, each as small as it can be, and servers of models that have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.server import tiny
from tests.server.live import Live, running

_ARGUMENTS = (
    "{% if call.function.arguments is string %}{{ call.function.arguments }}"
    "{% else %}{{ call.function.arguments | tojson }}{% endif %}"
)
_OBJECT = '{"name": "{{ call.function.name }}", "arguments": ' + _ARGUMENTS + "}"
_XML = (
    "\n<tool_call>\n<function={{ call.function.name }}>\n"
    "{% for name, value in call.function.arguments | items %}<parameter={{ name }}>\n{{ value }}\n</parameter>\n"
    "{% endfor %}</function>\n</tool_call>"
)
_SECTION = "<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"
_KIMI = "<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>" + _ARGUMENTS + "<|tool_call_end|>"
_KIMI_MARKS = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)


class Format(NamedTuple):
    """How past calls are rendered, and the marks that are special tokens."""

    call: str
    around: str = "{calls}"
    special: tuple[str, ...] = ()

    @property
    def template(self) -> str:
        calls = "{% for call in message.tool_calls or [] %}" + self.call + "{% endfor %}"
        calls = "{% if message.tool_calls %}" + self.around.replace("{calls}", calls) + "{% endif %}"
        return (
            "{% if tools %}<|im_start|>system\n"
            "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
            "{% for message in messages %}<|im_start|>{{ message.role }}\n"
            "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
            "{{ message.content }}" + calls + "<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% if thinking %}<think>\n{% endif %}{% endif %}"
        )


FORMATS = {
    "hermes": Format("\n<tool_call>\n" + _OBJECT + "\n</tool_call>"),
    "hermes-special": Format(
        "\n<tool_call>\n" + _OBJECT + "\n</tool_call>", special=("<tool_call>", "</tool_call>", "</think>")
    ),
    "granite": Format("{{ '<|tool_call|>[' if loop.first else ', ' }}" + _OBJECT, "{calls}]", ("<|tool_call|>",)),
    "kimi": Format(_KIMI, _SECTION, _KIMI_MARKS),
    "xml": Format(_XML),
}


@contextmanager
def serving(folder: Path, name: str, **options: Any) -> Iterator[Live]:
    """A server whose model's template has a format."""
    form = FORMATS[name]
    with running(tiny.save(folder / name, template=form.template, special=form.special), **options) as live:
        yield live


@contextmanager
def saying(server: Live, text: str) -> Iterator[None]:
    """Make the model write ``text`` and end, whatever it is asked."""
    prepare, tokenizer = server.engine.engine.prepare, server.engine.engine.loaded.tokenizer
    made = prepare.sequence
    words = (*tokenizer.encode(text), *server.engine.engine.loaded.end_tokens)

    def forced(prompt: Any, params: Any, **request: Any) -> Any:
        return made(prompt, replace(params, forced=words, max_tokens=params.max_tokens or len(words)), **request)

    prepare.sequence = forced  # type: ignore[method-assign]
    try:
        yield
    finally:
        prepare.sequence = made  # type: ignore[method-assign]
