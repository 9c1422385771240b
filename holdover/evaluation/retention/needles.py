"""One fact in a long plain text: the bundled models' needle task, in the form of RULER's NIAH-S1."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Protocol

# RULER's noise, of which the bundled models' training has seen a part
_NOISE = ("The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.")
_FACT = "The code for box {key} is {value}."
_QUESTION = "What is the code for box {key}?"
# begins unlike the question, so that what two prompts share ends where the question begins
_OTHER_QUESTION = "Tell me something else."


class ChatTokenizer(Protocol):
    """The parts of a tokenizer that prompts are made with."""

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``."""

    def render(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> list[int]:
        """Token ids of a conversation, ready for the assistant's next turn."""


@dataclass(frozen=True)
class Needle:
    """One prompt.

    Attributes:
        depth: where in the text the fact stands, 0 to 1.
        tokens: the whole prompt.
        shared: leading tokens that come before the question: the prefix that is cached.
        answer: the text that a right answer contains.
    """

    depth: float
    tokens: tuple[int, ...]
    shared: int
    answer: str


def make_needle(tokenizer: ChatTokenizer, rng: random.Random, depth: float, length: int) -> Needle:
    """Draw a prompt.

    Args:
        tokenizer: the model's tokenizer.
        rng: draws key and value.
        depth: where the fact stands, 0 to 1.
        length: tokens of the text, about.

    Raises:
        RequestError: the model has no chat template.
    """
    key, value = rng.randint(1, 999), rng.randint(1000, 999_999)
    block = len(tokenizer.encode(" ".join(_NOISE)))
    sentences = [*_NOISE * max(1, length // block)]
    sentences.insert(round(depth * len(sentences)), _FACT.format(key=key, value=value))
    text = " ".join(sentences)
    whole, other = (
        tokenizer.render([{"role": "user", "content": f"{text}\n{question}"}])
        for question in (_QUESTION.format(key=key), _OTHER_QUESTION)
    )
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(whole, other, strict=False)))
    return Needle(depth, tuple(whole), shared, str(value))
