"""Conversations with texts that are chunks: the template is rendered around them, and cut where they stand.

A chunk's tokens must be the same wherever it stands, so its text is tokenised by itself. While the template is
rendered, a word stands for it that no message can contain: it is drawn anew for every request.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Protocol

from holdover.chunks import Chunk
from holdover.engine.chat import render_chat
from holdover.errors import RequestError

_BYTES = 16


class TextTemplate(Protocol):
    """The part of a tokenizer that renders conversations as text, and tokenises the pieces."""

    def render_text(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> str:
        """A conversation, ready for the assistant's next turn."""

    def encode_part(self, text: str) -> list[int]:
        """Token ids of a part of a text."""


class Placeholders:
    """Words that stand for the chunks' texts of one request while its template is rendered.

    Attributes:
        texts: what they stand for, in order.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        # letters and digits: what templates strip, escape or split at is none of them
        self._name = f"chunk{secrets.token_hex(_BYTES)}n"

    def put(self, text: str) -> str:
        """The word that stands for ``text`` at this place."""
        self.texts.append(text)
        return f"{self._name}{len(self.texts) - 1}e"

    def cut(self, rendered: str) -> list[str]:
        """The texts around the words: one more than there are words.

        Raises:
            RequestError: a word is missing, repeated or out of order.
        """
        texts = re.split(f"{self._name}([0-9]+)e", rendered)
        if texts[1::2] != [str(number) for number in range(len(self.texts))] or self._name in "".join(texts[::2]):
            raise RequestError(
                "this model's chat template cannot carry chunks there: it leaves their texts out, repeats, moves or "
                "changes them; leave the marks out",
                param="messages",
            )
        return texts[::2]


@dataclass(frozen=True)
class ComposedChat:
    """A rendered conversation over chunks.

    Attributes:
        context: chunks, and token ids around them, up to the last chunk.
        query: token ids of what follows.
        boundaries: depths up to which the next turn is sure to repeat it, ascending.
    """

    context: tuple[Chunk | tuple[int, ...], ...]
    query: tuple[int, ...]
    boundaries: tuple[int, ...] = ()

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        """All of it."""
        parts = (part.tokens if isinstance(part, Chunk) else part for part in self.context)
        return (*chain.from_iterable(parts), *self.query)


def render_composed(
    template: TextTemplate,
    messages: Sequence[Mapping[str, Any]],
    placeholders: Placeholders,
    chunks: Callable[[str], Sequence[Chunk]],
    /,
    **options: Any,
) -> ComposedChat:
    """Render a conversation in whose messages words stand for chunks.

    Args:
        template: the model's.
        messages: as the template knows them.
        placeholders: the words.
        chunks: cuts a text into chunks.
        options: further variables of the template.

    Raises:
        RequestError: the template refuses the messages, or does not show the chunks in their places and something
            behind them; or a chunk's text cannot be cut.
    """
    cutter = _Cutter(template, placeholders, [tuple(chunks(text)) for text in placeholders.texts])
    chat = cutter.cut(messages, **options)
    _, boundaries = render_chat(cutter, messages, **options)
    return replace(chat, boundaries=boundaries)


class _Cutter:
    """A template as `render_chat` knows it, of conversations with placeholders."""

    def __init__(self, template: TextTemplate, placeholders: Placeholders, chunks: list[tuple[Chunk, ...]]) -> None:
        self._template, self._placeholders, self._chunks = template, placeholders, chunks

    def cut(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> ComposedChat:
        rendered = self._template.render_text(messages, **options)
        *around, last = (tuple(self._template.encode_part(text)) for text in self._placeholders.cut(rendered))
        if not last:
            raise RequestError(
                "nothing follows the last chunk in this model's chat template: leave its mark out", param="messages"
            )
        context: list[Chunk | tuple[int, ...]] = []
        for text, chunks in zip(around, self._chunks, strict=True):
            context += [text, *chunks] if text else chunks
        return ComposedChat(tuple(context), last)

    def render(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> list[int]:
        return list(self.cut(messages, **options).tokens)
