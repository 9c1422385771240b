"""Tokenising texts that begin like others before them, as the turns of a conversation do."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from holdover.engine.alike import alike

# texts that are remembered, and characters below which one is not worth it
_TEXTS, _SHORT = 32, 1024


class IncrementalEncoder:
    """Tokenises only what a text does not share with one that it has tokenised before.

    Special tokens split a text before anything else reads it, so that tokens in front of one do not depend on what
    follows. A text is therefore cut at the last special token of what both share, and only where the earlier text,
    cut there too, gives the tokens that it gave as a whole: for tokenizers of which that is not true, nothing is saved
    and nothing changes. Safe to use from several threads.

    Args:
        encode: tokenises a text as a whole.
        special: the special tokens' ids and texts.

    Attributes:
        tokenised: characters that `encode` was asked for so far.
    """

    def __init__(self, encode: Callable[[str], list[int]], special: Mapping[int, str]) -> None:
        self.tokenised = 0
        self._whole = encode
        self._special = special
        self._recent: list[_Known] = []
        self._lock = threading.Lock()

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``: those of a call to the tokenizer itself."""
        if len(text) < _SHORT:
            return self._count(text)
        with self._lock:
            known = max(self._recent, key=lambda one: one.shared(text), default=None)
        cut = None if known is None else known.cut(text)
        if known is None or cut is None or not self._splits(known, cut):
            ids = self._count(text)
            self._remember(text, ids)
            return ids
        ids = known.ids[: cut.token].tolist() + self._count(text[cut.character :])
        if len(text) - cut.character < _SHORT:
            self._touch(known)
        else:
            self._remember(text, ids)
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

    def _remember(self, text: str, ids: list[int]) -> None:
        places = array("I", (place for place, token in enumerate(ids) if token in self._special))
        known = _Known(text, array("I", ids), places, {self._special[ids[place]] for place in places})
        with self._lock:
            self._recent = [*self._recent[-_TEXTS + 1 :], known]

    def _touch(self, known: _Known) -> None:
        with self._lock:
            others = [one for one in self._recent if one is not known]
            if len(others) < len(self._recent):
                self._recent = [*others, known]


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

    def shared(self, text: str) -> int:
        """Characters at the beginning that both texts have."""
        return alike(self.text, text)

    def cut(self, text: str) -> _Cut | None:
        """Where ``text`` may be cut, if that saves anything: the last special token of what both share."""
        shared = self.shared(text)
        character = max((self.text.rfind(special, 0, shared) for special in self.special), default=-1)
        before = sum(self.text.count(special, 0, character) for special in self.special) if character > 0 else 0
        # the cut is tried on the rest of this text, which must not cost more than it saves
        if character <= len(self.text) - character or before >= len(self.places):
            return None
        return _Cut(character, self.places[before])
