"""Where tokens begin in a text."""

from __future__ import annotations

import codecs
from typing import Protocol

from holdover.engine.text import Decoder


class Vocabulary(Protocol):
    """The part of a tokenizer that knows tokens one by one."""

    @property
    def verbatim(self) -> Decoder:
        """Turns ids into text with special tokens left in."""

    def token_text(self, token: int) -> str:
        """Text of one token within others."""

    def token_bytes(self, token: int) -> bytes | None:
        """Bytes of that text, or the part of a character's that the token is; None if nobody knows."""

    def is_special_token(self, token: int) -> bool:
        """Whether decoding leaves it out."""


class Offsets:
    """Counts the characters before each of the tokens that a text is made of.

    A token that begins within a character begins where the character does. A special token takes room only where the
    text has it.

    Args:
        vocabulary: what tokens stand for.
        start: characters before the first token.
        text: all of the text, if special tokens may be in it.
    """

    def __init__(self, vocabulary: Vocabulary, start: int = 0, text: str = "") -> None:
        self._vocabulary = vocabulary
        self._text = text
        self._at = start
        self._is_empty = True
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def place(self, token: int) -> int:
        """The characters before the next token."""
        spelled = self._bytes(token)
        if spelled and spelled[0] & 0xC0 != 0x80:
            # a character that was begun does not go on: it stands as a replacement
            self._at += len(self._decoder.decode(b"", final=True))
        at = self._at
        self._at += len(self._decoder.decode(spelled))
        return at

    def _bytes(self, token: int) -> bytes:
        vocabulary = self._vocabulary
        spelled, text = vocabulary.token_bytes(token), vocabulary.token_text(token)
        if vocabulary.is_special_token(token):
            return text.encode() if text and self._text.startswith(text, self._at) else b""
        if self._is_empty:
            self._is_empty = False
            # the space in front of a text's first token may be left out
            alone = vocabulary.verbatim.decode([token])
            if len(alone) < len(text) and text.endswith(alone):
                return alone.encode("utf-8", "surrogatepass")
        return text.encode("utf-8", "surrogatepass") if spelled is None else spelled
