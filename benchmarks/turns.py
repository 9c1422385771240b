"""Recorded conversations as the token ids that a chat client would send and should be answered with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from holdover.engine.chat import render_chat
from holdover.engine.hf.loader import Loaded
from holdover.errors import RequestError
from holdover.evaluation.traces import Conversation


@dataclass(frozen=True)
class Exchange:
    """A prompt and its recorded reply.

    Attributes:
        prompt: the conversation so far, rendered by the model's chat template.
        boundaries: depths within the prompt that the next one is sure to repeat.
        reply: tokens of the recorded reply, its end included.
    """

    prompt: tuple[int, ...]
    boundaries: tuple[int, ...]
    reply: tuple[int, ...]


def exchanges(conversation: Conversation, loaded: Loaded, max_context: int) -> list[Exchange]:
    """The exchanges of a conversation, up to the first that does not fit into the context."""
    found: list[Exchange] = []
    messages: list[dict[str, str]] = []
    for turn in conversation.turns:
        if turn.role == "assistant" and messages and messages[-1]["role"] == "user":
            exchange = _exchange(messages, turn.text, loaded)
            if len(exchange.prompt) + len(exchange.reply) > max_context:
                break
            found.append(exchange)
        messages.append({"role": turn.role, "content": turn.text})
    return found


def long_conversations(
    conversations: Iterable[Conversation], loaded: Loaded, max_context: int, history: range
) -> Iterator[tuple[str, list[Exchange]]]:
    """Conversations with at least one later exchange whose prompt's length is within ``history``."""
    for conversation in conversations:
        try:
            found = exchanges(conversation, loaded, max_context)
        except RequestError:
            # recorded conversations may begin with an answer, or hold two in a row: some templates refuse that
            continue
        if any(len(exchange.prompt) in history for exchange in found[1:]):
            yield conversation.id, found


def _exchange(messages: list[dict[str, str]], reply: str, loaded: Loaded) -> Exchange:
    prompt, boundaries = render_chat(loaded.tokenizer, messages)
    # how the template itself writes the reply: tokenising the text alone may cut it elsewhere
    after = [{"role": "assistant", "content": reply}, {"role": "user", "content": "Go on."}]
    continued = loaded.tokenizer.render([*messages, *after])
    tokens = loaded.tokenizer.encode(reply)
    if continued[: len(prompt)] == prompt:
        rest = continued[len(prompt) :]
        end = next((i for i, token in enumerate(rest) if token in loaded.end_tokens), None)
        tokens = tokens if end is None else rest[: end + 1]
    return Exchange(tuple(prompt), boundaries, tuple(tokens))
