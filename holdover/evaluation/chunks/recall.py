"""Prompts that ask for one of many records: the bundled models' recall task, its records in documents."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Protocol

from holdover.chunks import Chunk
from holdover.errors import ConfigError
from holdover.evaluation.chunks.case import Case

# share no beginning and no end, so that what the template puts around a content does not depend on it
_PROBES = ("x", "7.")


class ChatTokenizer(Protocol):
    """The parts of a tokenizer that prompts are made with."""

    def encode_part(self, text: str) -> list[int]:
        """Token ids of a part of a text."""

    def render(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> list[int]:
        """Token ids of a conversation, ready for the assistant's next turn."""


@dataclass(frozen=True)
class Records:
    """One kind of record, in words that training has seen.

    Attributes:
        states: says that key ``{k}`` has value ``{v}``.
        asks: asks for the value of ``{k}``.
        key: draws a key.
        value: draws a value.
    """

    states: str
    asks: str
    key: Callable[[random.Random], str]
    value: Callable[[random.Random], str]


def _number(low: int, high: int) -> Callable[[random.Random], str]:
    return lambda rng: str(rng.randint(low, high))


def _serial(rng: random.Random) -> str:
    return f"{rng.choice('ABCDEFGHJKLMNPQRSTUVWXYZ')}{rng.randint(0, 9)}-{rng.randint(100, 999)}"


KINDS = (
    Records("The code for box {k} is {v}.", "What is the code for box {k}?", _number(1, 999), _number(1000, 999_999)),
    Records(
        "Locker {k} has the combination {v}.",
        "Which combination does locker {k} have?",
        _number(1, 999),
        _number(1000, 999_999),
    ),
    Records("The seat of ticket {k} is {v}.", "What is the seat of ticket {k}?", _number(100, 99_999), _serial),
)


def draw(
    tokenizer: ChatTokenizer, end_tokens: frozenset[int], prompts: int, *, chunks: int, tokens: int, seed: int = 0
) -> list[Case]:
    """Draw prompts: documents of records, one chunk each, then a question about one of all records.

    Args:
        tokenizer: the model's tokenizer.
        end_tokens: what ends an answer.
        prompts: how many; those of a smaller number come first in a larger one.
        chunks: documents.
        tokens: most tokens of each; it holds as many records as fit.
        seed: the same seed gives the same prompts.

    Returns:
        The prompts, and as what follows the right answer with an end token.

    Raises:
        RequestError: the model has no chat template.
        ConfigError: no record fits into a chunk, there are not keys enough, or no token ends an answer.
    """
    if not end_tokens:
        raise ConfigError("this model has no end token, so it cannot be told where an answer ends")
    frame, end = _frame(tokenizer), min(end_tokens)
    return [
        _prompt(tokenizer, random.Random(f"recall-{seed}-{number}"), frame, end, chunks, tokens)
        for number in range(prompts)
    ]


def _prompt(
    tokenizer: ChatTokenizer,
    rng: random.Random,
    frame: tuple[tuple[int, ...], tuple[int, ...]],
    end: int,
    chunks: int,
    tokens: int,
) -> Case:
    kind = rng.choice(KINDS)
    taken: dict[str, str] = {}
    documents = [_document(tokenizer, rng, kind, tokens, taken) for _ in range(chunks)]
    key = rng.choice(list(taken))
    head, tail = frame
    query = (*tokenizer.encode_part(kind.asks.format(k=key)), *tail)
    return Case((head, *documents), query, (*tokenizer.encode_part(taken[key]), end))


def _document(tokenizer: ChatTokenizer, rng: random.Random, kind: Records, tokens: int, taken: dict[str, str]) -> Chunk:
    """A chunk of records, which are added to ``taken``."""
    ids: tuple[int, ...] = ()
    text = ""
    while True:
        key = _fresh(rng, kind, taken)
        value = kind.value(rng)
        text += kind.states.format(k=key, v=value) + "\n"
        longer = tuple(tokenizer.encode_part(text))
        if len(longer) > tokens:
            break
        ids, taken[key] = longer, value
    if not ids:
        raise ConfigError(f"no record fits into a chunk of {tokens} tokens: raise --tokens")
    return Chunk(ids)


def _fresh(rng: random.Random, kind: Records, taken: Mapping[str, str]) -> str:
    for _ in range(1000):
        if (key := kind.key(rng)) not in taken:
            return key
    raise ConfigError("the chunks hold more records than there are keys: lower --chunks or --tokens")


def _frame(tokenizer: ChatTokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the chat template puts before the text of a question, and behind it."""
    first, second = (tokenizer.render([{"role": "user", "content": probe}]) for probe in _PROBES)
    head = _shared(first, second)
    tail = _shared(first[::-1], second[::-1])
    return tuple(first[:head]), tuple(first[len(first) - tail :])


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
