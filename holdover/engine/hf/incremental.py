"""Tokenising texts that begin alike, as one conversation does that is rendered in several ways."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from holdover.engine.alike import alike

# characters below which a text is not worth remembering
_SHORT = 1024


def splitting(added: Iterable[tuple[int, Any]]) -> dict[int, str]:
    """The added tokens that split a text wherever they stand, whatever is around them, by their ids.

    Left out are those that are looked for after normalisation, or as whole words only, and those that may be a part of
    another one.
    """
    every = dict(added)
    return {
        number: token.content
        for number, token in every.items()
        if token.special
        and not token.normalized
        and not token.single_word
        and not any(token.content in other.content for at, other in every.items() if at != number)
    }


class IncrementalEncoder:
    """Tokenises only what a text does not share with one that it has tokenised before.

    A text is cut at the last splitting token of what both share: tokens in front of it do not depend on what follows.
    To make sure that a tokenizer keeps to that, the earlier text is cut there too, and what follows must have the same
    tokens by itself as it had within the whole; if not, the text is tokenised whole. What is remembered are texts of
    whoever uses this object: make one for each request.

    Args:
        encode: tokenises a text as a whole.
        special: ids and texts of the tokens that split a text.

    Attributes:
        tokenised: characters that `encode` was asked for so far.
    """

    def __init__(self, encode: Callable[[str], list[int]], special: dict[int, str]) -> None:
        self.tokenised = 0
        self._whole = encode
        self._special = special
        self._known: list[_Known] = []

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``: those of a call to the tokenizer itself."""
        known = max(self._known, key=lambda one: alike(one.text, text), default=None)
        cut = None if known is None else known.cut(text)
        if known is None or cut is None or not self._splits(known, cut):
            ids, fresh = self._count(text), len(text)
        else:
            ids = known.ids[: cut.token].tolist() + self._count(text[cut.character :])
            fresh = len(text) - cut.character
        if fresh >= _SHORT:
            places = array("I", (place for place, token in enumerate(ids) if token in self._special))
            special = {self._special[ids[place]] for place in places}
            self._known.append(_Known(text, array("I", ids), places, special))
        return ids

    def _splits(self, known: _Known, cut: _Cut) -> bool:
        """Whether what follows a cut of a known text has the same tokens by itself."""
        found = known.splits.get(cut)
        if found is None:
            found = known.splits[cut] = self._count(known.text[cut.character :]) == known.ids[cut.token :].tolist()
        return found

    def _count(self, text: str) -> list[int]:
        self.tokenised += len(text)
        return self._whole(text)


@dataclass(frozen=True)
class _Cut:
    """The place of a special token.

    Attributes:
        character: in the text.
        token: among the ids.
    """

    character: int
    token: int


@dataclass(eq=False)
class _Known:
    """A text that was tokenised.

    Attributes:
        text: the text.
        ids: its tokens.
        places: indices of special tokens among them.
        special: texts of the special tokens that occur.
        splits: for cuts that were tried, whether what follows has the same tokens by itself.
    """

    text: str
    ids: array[int]
    places: array[int]
    special: set[str]
    splits: dict[_Cut, bool] = field(default_factory=dict)

    def cut(self, text: str) -> _Cut | None:
        """Where ``text`` may be cut, if that saves anything: the last special token of what both share."""
        shared = alike(self.text, text)
        character = max((self.text.rfind(special, 0, shared) for special in self.special), default=-1)
        before = sum(self.text.count(special, 0, character) for special in self.special) if character > 0 else 0
        # the cut is tried on the rest of this text, which must not cost more than it saves
        if character <= len(self.text) - character or before >= len(self.places):
            return None
        return _Cut(character, self.places[before])
