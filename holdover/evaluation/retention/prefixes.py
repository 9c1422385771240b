"""Which prefixes horizons are validated on (DASC App. A.2): chosen by rule, never by chance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from holdover.errors import ConfigError
from holdover.evaluation.traces import Conversation, load_sharegpt

# tiers of A.2, and how its candidates are found
PAPER_LENGTHS = (16384, 8192, 4096, 1024)
_CHARACTERS_PER_TOKEN = 3.5
_CANDIDATES = 500
_SPEAKERS = {"user": "User", "assistant": "Assistant", "system": "System"}


class Encoder(Protocol):
    """The part of a tokenizer that turns text into tokens."""

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``."""


@dataclass(frozen=True)
class Prefix:
    """One prefix.

    Attributes:
        source: place of its conversation among those read, or of its first token in the text.
        tokens: its tokens.
    """

    source: int
    tokens: tuple[int, ...]


def tiers(max_context: int) -> tuple[int, ...]:
    """The paper's lengths, all scaled down by one power of two until the longest fits."""
    scale = 1
    while PAPER_LENGTHS[0] // scale > max_context and PAPER_LENGTHS[-1] // scale > 1:
        scale *= 2
    return tuple(length // scale for length in PAPER_LENGTHS)


def select_prefixes(path: Path, encoder: Encoder, lengths: Sequence[int], count: int) -> list[Prefix]:
    """Prefixes of a file: of its conversations if it is ShareGPT's JSON (``.json``), else of its text.

    Args:
        path: the file.
        encoder: the model's tokenizer.
        lengths: target lengths in tokens, processed in descending order.
        count: prefixes in all, shared equally by the lengths.

    Raises:
        ConfigError: the file cannot be read or has too little text, or ``count`` cannot be shared.
        HoldoverError: a ``.json`` file is not ShareGPT's.
    """
    if not lengths or count < len(lengths) or count % len(lengths):
        raise ConfigError(f"{count} prefixes cannot be shared equally by lengths {list(lengths)}")
    ordered = sorted(lengths, reverse=True)
    if path.suffix == ".json":
        return from_conversations(load_sharegpt(path), encoder, ordered, count // len(lengths))
    return from_text(encoder.encode(read_text(path)), ordered, count // len(lengths))


def from_conversations(
    conversations: Iterable[Conversation], encoder: Encoder, lengths: Sequence[int], per_length: int
) -> list[Prefix]:
    """The selection of A.2.

    For each target T, of the conversations not taken yet that have at least 3.5 T characters, the first 500 are
    tokenised and sorted by length. The shortest ones with at least T tokens are taken, or the longest there are where
    too few have as many. What is longer than T loses its beginning.
    """
    texts = [serialise(conversation) for conversation in conversations]
    taken: set[int] = set()
    found = []
    for length in lengths:
        eligible = (i for i, text in enumerate(texts) if i not in taken and len(text) >= _CHARACTERS_PER_TOKEN * length)
        candidates = [Prefix(i, tuple(encoder.encode(texts[i]))) for i in islice(eligible, _CANDIDATES)]
        candidates.sort(key=lambda prefix: (len(prefix.tokens), prefix.source))
        first = next((i for i, prefix in enumerate(candidates) if len(prefix.tokens) >= length), len(candidates))
        start = max(0, min(first, len(candidates) - per_length))
        chosen = candidates[start : start + per_length]
        taken.update(prefix.source for prefix in chosen)
        found += [Prefix(prefix.source, prefix.tokens[-length:]) for prefix in chosen]
    if not found:
        raise ConfigError(f"no conversation is long enough for lengths {list(lengths)}: choose shorter --lengths")
    return found


def serialise(conversation: Conversation) -> str:
    """A conversation as alternating ``User:`` and ``Assistant:`` blocks."""
    return "\n\n".join(f"{_SPEAKERS[turn.role]}: {turn.text}" for turn in conversation.turns)


def from_text(tokens: Sequence[int], lengths: Sequence[int], per_length: int) -> list[Prefix]:
    """Consecutive pieces of a text, ``per_length`` of each length, or as many of each as there are.

    Raises:
        ConfigError: there is not even one of each.
    """
    per_length = min(per_length, len(tokens) // sum(lengths))
    if per_length < 1:
        raise ConfigError(
            f"the text has {len(tokens)} tokens and one piece of each of {list(lengths)} needs {sum(lengths)}: give a "
            "longer text or shorter --lengths"
        )
    found, start = [], 0
    for length in lengths:
        for _ in range(per_length):
            found.append(Prefix(start, tuple(tokens[start : start + length])))
            start += length
    return found


def read_text(path: Path) -> str:
    """A file of UTF-8 text.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
