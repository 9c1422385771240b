"""A frozen trace as token ids again, with the recorded replies in the history."""

from __future__ import annotations

from collections.abc import Collection

from holdover.errors import HoldoverError, RequestError
from holdover.evaluation.traces.exchanges import ChatTokenizer, Exchange, exchange_of, spoken
from holdover.evaluation.traces.trace import Dialogue, Trace, hash_of


def exchanges_of(trace: Trace, tokenizer: ChatTokenizer, end_tokens: Collection[int]) -> list[list[Exchange]]:
    """Every conversation's exchanges; a reply has as many tokens as the trace asks for.

    Args:
        trace: the trace.
        tokenizer: of the model that it was made for.
        end_tokens: tokens that end a reply.

    Raises:
        HoldoverError: the tokenizer or its template gives other tokens than those that were frozen.
    """
    return [_exchanges(trace, dialogue, tokenizer, end_tokens) for dialogue in trace.dialogues]


def _exchanges(
    trace: Trace, dialogue: Dialogue, tokenizer: ChatTokenizer, end_tokens: Collection[int]
) -> list[Exchange]:
    messages, found = dialogue.opening(), []
    for number, turn in enumerate(dialogue.turns):
        messages.append({"role": "user", "content": turn.text})
        try:
            exchange = exchange_of(messages, turn.reply, tokenizer, end_tokens)
        except RequestError as error:
            raise _differs(trace, dialogue, number, str(error)) from None
        if hash_of(exchange.prompt) != turn.prompt_hash:
            count = len(exchange.prompt)
            raise _differs(trace, dialogue, number, f"{count} tokens here, {turn.prompt_tokens} when it was frozen")
        reply = spoken(exchange.reply, end_tokens)[: turn.max_tokens]
        found.append(Exchange(exchange.prompt, exchange.boundaries, reply))
        messages.append({"role": "assistant", "content": turn.reply})
    return found


def _differs(trace: Trace, dialogue: Dialogue, turn: int, why: str) -> HoldoverError:
    return HoldoverError(
        f"turn {turn} of conversation {dialogue.id} has another prompt than the trace says ({why}): it was made for "
        f"{trace.model}. Make one for this model with holdover trace"
    )
