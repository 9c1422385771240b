"""Conversations as tokens: what is said at each turn, and the reply that every arm is made to give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from holdover.errors import ConfigError
from holdover.evaluation.protocols.problem import Problem


@dataclass(frozen=True)
class Turn:
    """One turn.

    Attributes:
        said: tokens before the reply, at least one; at the first turn at least two.
        length: tokens of the reply, at least two.
        reply: the reply; empty for what exact greedy decoding says.
    """

    said: tuple[int, ...]
    length: int
    reply: tuple[int, ...] = ()


@dataclass(frozen=True)
class Conversation:
    """One conversation, which is the statistical unit.

    Attributes:
        id: unique among those of a run.
        turns: at least two: the second is the first that resumes.
    """

    id: str
    turns: tuple[Turn, ...]

    def __len__(self) -> int:
        return sum(len(turn.said) + turn.length for turn in self.turns)


def from_text(
    tokens: Sequence[int], *, turns: int, prefix: int, following: int, limit: int | None
) -> list[Conversation]:
    """Consecutive pieces of a text, each read in turns: what is said and what is replied alternate.

    Args:
        tokens: the text.
        turns: turns of a conversation.
        prefix: tokens of the first message.
        following: tokens of every reply, and of every further message.
        limit: most conversations; None for all that there are.

    Raises:
        ConfigError: the text is shorter than one conversation, or messages are too short.
    """
    _check(turns, following)
    sizes = [prefix, *[following] * (2 * turns - 1)]
    piece = sum(sizes)
    count = len(tokens) // piece if limit is None else min(limit, len(tokens) // piece)
    if not count:
        raise ConfigError(f"the text has {len(tokens)} tokens and a conversation {piece}: give a longer one")
    found = []
    for i in range(count):
        own = tokens[i * piece : (i + 1) * piece]
        ends = list(accumulate(sizes))
        parts = [tuple(own[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
        pairs = zip(parts[::2], parts[1::2], strict=True)
        found.append(Conversation(f"piece-{i}", tuple(Turn(said, following, reply) for said, reply in pairs)))
    return found


def from_problems(problems: Sequence[Problem], *, turns: int, following: int) -> list[Conversation]:
    """Problems in their order, so many to a conversation; every reply is what exact greedy decoding says.

    Raises:
        ConfigError: there are too few for one conversation, or replies are too short.
    """
    _check(turns, following)
    count = len(problems) // turns
    if not count:
        raise ConfigError(f"{len(problems)} problems are too few for a conversation of {turns} turns")
    groups = [problems[i * turns : (i + 1) * turns] for i in range(count)]
    return [Conversation(group[0].id, tuple(Turn(one.prompt, following) for one in group)) for group in groups]


def _check(turns: int, following: int) -> None:
    if turns < 2 or following < 2:
        raise ConfigError("conversations need one restore, and replies of two tokens: raise --restores or --following")
