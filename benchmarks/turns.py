"""Recorded conversations as the token ids that a chat client would send and should be answered with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdover.engine.hf.loader import Loaded
from holdover.errors import RequestError
from holdover.evaluation.traces import Conversation
from holdover.evaluation.traces.exchanges import Exchange, exchange_of


def exchanges(conversation: Conversation, loaded: Loaded, max_context: int) -> list[Exchange]:
    """The exchanges of a conversation, up to the first that does not fit into the context."""
    found: list[Exchange] = []
    messages: list[dict[str, str]] = []
    for turn in conversation.turns:
        if turn.role == "assistant" and messages and messages[-1]["role"] == "user":
            exchange = exchange_of(messages, turn.text, loaded.tokenizer, loaded.end_tokens)
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
