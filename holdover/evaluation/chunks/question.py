"""Questions about documents, and the prompts that they become: a chunk or more for each document, then the question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from holdover.chunks import Chunk
from holdover.engine.alike import alike
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
class Question:
    """A question about documents.

    Attributes:
        documents: their texts, in order.
        asks: the question.
        answer: the right answer.
        is_chat: whether all of it is a user's message; otherwise the texts follow each other as they are.
    """

    documents: tuple[str, ...]
    asks: str
    answer: str
    is_chat: bool = True


class Framing:
    """Makes prompts of questions.

    Args:
        tokenizer: the model's tokenizer.
        end_tokens: what ends an answer.

    Raises:
        ConfigError: no token ends an answer.
    """

    def __init__(self, tokenizer: ChatTokenizer, end_tokens: frozenset[int]) -> None:
        if not end_tokens:
            raise ConfigError("this model has no end token, so it cannot be told where an answer ends")
        self._tokenizer, self._end = tokenizer, min(end_tokens)

    def case(self, question: Question, tokens: int) -> Case:
        """The prompt, and as what follows the right answer with an end token.

        Args:
            question: what is asked.
            tokens: most tokens of a chunk; longer documents are cut into consecutive pieces.

        Raises:
            RequestError: the question is a user's message, and the model has no chat template.
        """
        encode = self._tokenizer.encode_part
        head, tail = self._frame if question.is_chat else ((), ())
        chunks = tuple(piece for text in question.documents for piece in _pieces(encode(text), tokens))
        following = (*encode(question.answer), self._end)
        return Case((head, *chunks) if head else chunks, (*encode(question.asks), *tail), following)

    @cached_property
    def _frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What the chat template puts before the text of a message, and behind it."""
        first, second = (self._tokenizer.render([{"role": "user", "content": probe}]) for probe in _PROBES)
        head = alike(first, second)
        tail = alike(first[::-1], second[::-1])
        return tuple(first[:head]), tuple(first[len(first) - tail :])


def _pieces(ids: Sequence[int], most: int) -> list[Chunk]:
    return [Chunk(tuple(ids[start : start + most])) for start in range(0, len(ids), most)]
