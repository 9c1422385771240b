"""From tokens to text while they arrive: whole characters only, and nothing that may become a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Decoder(Protocol):
    """The part of a tokenizer that turns ids into text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``, special tokens left out."""


class TextStream:
    """Text of a growing token sequence.

    Args:
        decoder: the tokenizer.
        stop: strings that end the text.
    """

    def __init__(self, decoder: Decoder, stop: Sequence[str] = ()) -> None:
        self._decoder = decoder
        self._stop = tuple(stop)
        self._ids: list[int] = []
        # tokens before `_anchor` are decoded for good; those up to `_read` have given text already
        self._anchor = 0
        self._read = 0
        self._text = ""
        self._given = 0
        self.stopped = False

    def fresh(self) -> TextStream:
        """An empty stream of the same tokenizer, without stop strings."""
        return TextStream(self._decoder)

    @property
    def text(self) -> str:
        """All text so far, held back or not; cut at a stop string."""
        return self._text

    def push(self, token: int) -> str:
        """Take a token; return the text that is now certain. Sets `stopped` at a stop string."""
        self._ids.append(token)
        before = self._decoder.decode(self._ids[self._anchor : self._read])
        after = self._decoder.decode(self._ids[self._anchor :])
        # a replacement character at the end is a character whose bytes have not all arrived
        if len(after) > len(before) and not after.endswith("\ufffd"):
            self._text += after[len(before) :]
            self._anchor, self._read = self._read, len(self._ids)
            self._cut_at_stop()
        return self._release(held=0 if self.stopped else self._pending_stop())

    def finish(self) -> str:
        """End of tokens: return what was held back."""
        if not self.stopped:
            before = self._decoder.decode(self._ids[self._anchor : self._read])
            self._text += self._decoder.decode(self._ids[self._anchor :])[len(before) :]
            self._read = len(self._ids)
            self._cut_at_stop()
        return self._release(held=0)

    def _cut_at_stop(self) -> None:
        ends = [i for s in self._stop if (i := self._text.find(s, max(0, self._given - len(s) + 1))) >= 0]
        if ends:
            self._text = self._text[: min(ends)]
            self.stopped = True

    def _pending_stop(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        longest = 0
        for stop in self._stop:
            sizes = range(min(len(stop) - 1, len(self._text)), 0, -1)
            longest = max(longest, next((n for n in sizes if self._text.endswith(stop[:n])), 0))
        return longest

    def _release(self, held: int) -> str:
        end = max(self._given, len(self._text) - held)
        given, self._given = self._text[self._given : end], end
        return given
