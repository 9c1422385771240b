"""Prompt lookup: what followed the last tokens when they occurred before is proposed to follow them again."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from weakref import WeakKeyDictionary

from holdover.engine.sequence import Sequence
from holdover.engine.speculation.speculator import Proposer


class PromptLookup(Proposer):
    """Proposes the continuation of the latest earlier occurrence of a sequence's last tokens.

    Longer matches are tried first. Each sequence's occurrences are indexed once, as its tokens come.

    Args:
        longest: most tokens that a match may have.
        shortest: fewest.
    """

    def __init__(self, longest: int = 4, shortest: int = 2) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._indices: WeakKeyDictionary[Sequence, _Index] = WeakKeyDictionary()

    def propose(self, sequences: Tokens[Sequence], most: int) -> list[list[int]]:
        """Up to ``most`` tokens for each sequence; none where nothing matches."""
        return [self._propose(sequence, most) for sequence in sequences]

    def _propose(self, sequence: Sequence, most: int) -> list[int]:
        index = self._indices.get(sequence)
        if index is None:
            index = self._indices[sequence] = _Index(self._sizes)
        found = index.find(sequence.tokens)
        return [] if found is None else sequence.tokens[found : found + most]


class _Index:
    """Where each run of tokens of a sequence ended last, the run at its very end left out."""

    def __init__(self, sizes: range) -> None:
        self._sizes = sizes
        self._ends: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def find(self, tokens: list[int]) -> int | None:
        """Position after the latest earlier occurrence of the last tokens."""
        for end in range(self._indexed + 1, len(tokens)):
            for size in self._sizes:
                if size <= end:
                    self._ends[tuple(tokens[end - size : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)
        for size in self._sizes:
            if size <= len(tokens) and (found := self._ends.get(tuple(tokens[-size:]))) is not None:
                return found
        return None
