"""Prompts that ask for one of many records: the bundled models' recall task, its records in documents."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdover.errors import ConfigError
from holdover.evaluation.chunks.case import Case
from holdover.evaluation.chunks.question import ChatTokenizer, Framing, Question

Encode = Callable[[str], Sequence[int]]


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
        prompts: see `questions`.
        chunks: likewise.
        tokens: likewise.
        seed: likewise.

    Returns:
        The prompts, and as what follows the right answer with an end token.

    Raises:
        RequestError: the model has no chat template.
        ConfigError: see `questions`; or no token ends an answer.
    """
    framing = Framing(tokenizer, end_tokens)
    drawn = questions(tokenizer.encode_part, prompts, chunks=chunks, tokens=tokens, seed=seed)
    return [framing.case(one, tokens) for one in drawn]


def questions(encode: Encode, prompts: int, *, chunks: int, tokens: int, seed: int = 0) -> list[Question]:
    """The same before they are tokens.

    Args:
        encode: token ids of a part of a text.
        prompts: how many; those of a smaller number come first in a larger one.
        chunks: documents of each.
        tokens: most tokens of each; it holds as many records as fit.
        seed: the same seed gives the same questions.

    Raises:
        ConfigError: no record fits into a chunk, or there are not keys enough.
    """
    return [_question(encode, random.Random(f"recall-{seed}-{number}"), chunks, tokens) for number in range(prompts)]


def _question(encode: Encode, rng: random.Random, chunks: int, tokens: int) -> Question:
    kind = rng.choice(KINDS)
    taken: dict[str, str] = {}
    documents = [_document(encode, rng, kind, tokens, taken) for _ in range(chunks)]
    key = rng.choice(list(taken))
    return Question(tuple(documents), kind.asks.format(k=key), taken[key])


def _document(encode: Encode, rng: random.Random, kind: Records, tokens: int, taken: dict[str, str]) -> str:
    """Records, which are added to ``taken``."""
    text = ""
    while True:
        key = _fresh(rng, kind, taken)
        value = kind.value(rng)
        longer = text + kind.states.format(k=key, v=value) + "\n"
        if len(encode(longer)) > tokens:
            break
        text, taken[key] = longer, value
    if not text:
        raise ConfigError(f"no record fits into a chunk of {tokens} tokens: raise --tokens")
    return text


def _fresh(rng: random.Random, kind: Records, taken: Mapping[str, str]) -> str:
    for _ in range(1000):
        if (key := kind.key(rng)) not in taken:
            return key
    raise ConfigError("the chunks hold more records than there are keys: lower --chunks or --tokens")
