"""Recorded conversations as the token ids that a chat client sends and should be answered with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdover.engine.chat import render_chat


class ChatTokenizer(Protocol):
    """The part of a tokenizer that conversations need."""

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``."""

    def render(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> list[int]:
        """Token ids of a conversation, ready for the assistant's next turn."""


@dataclass(frozen=True)
class Exchange:
    """A prompt and its recorded reply.

    Attributes:
        prompt: the conversation so far, rendered by the model's chat template.
        boundaries: depths within the prompt that the next one is sure to repeat.
        reply: tokens of the recorded reply, its end included where the template writes one.
    """

    prompt: tuple[int, ...]
    boundaries: tuple[int, ...]
    reply: tuple[int, ...]


def exchange_of(
    messages: Sequence[Mapping[str, str]], reply: str, tokenizer: ChatTokenizer, end_tokens: Collection[int]
) -> Exchange:
    """What is sent for ``messages``, and ``reply`` as the template itself writes it.

    Raises:
        RequestError: the template refuses the messages.
    """
    prompt, boundaries = render_chat(tokenizer, messages)
    # tokenising the text alone may cut it elsewhere
    after = [{"role": "assistant", "content": reply}, {"role": "user", "content": "Go on."}]
    continued = tokenizer.render([*messages, *after])
    tokens = tokenizer.encode(reply)
    if continued[: len(prompt)] == prompt:
        rest = continued[len(prompt) :]
        end = next((i for i, token in enumerate(rest) if token in end_tokens), None)
        tokens = tokens if end is None else rest[: end + 1]
    return Exchange(tuple(prompt), boundaries, tuple(tokens))


def spoken(reply: tuple[int, ...], end_tokens: Collection[int]) -> tuple[int, ...]:
    """A reply without the token that ends it: servers are asked for a number of tokens, not for an end."""
    return reply[:-1] if reply and reply[-1] in end_tokens else reply
