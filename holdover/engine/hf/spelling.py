"""The bytes that each token of a vocabulary stands for, those of tokens that end inside a character included."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

# what decoders write for bytes that are no whole character
_REPLACEMENT = "\ufffd"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_KEPT = 2**16


class Spelling:
    """Tokens as they stand within a text.

    A token's bytes are those of its text. Where that is no whole character, they are read from the vocabulary, in the
    way in which its kind writes them: a letter for each byte (byte-level BPE), or ``<0xE2>`` (SentencePiece's byte
    fallback).

    Args:
        tokenizer: a tokenizer of Transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)
        # a token's space in front may be left out at the beginning of a text: it is decoded behind another one
        self._anchor = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._before = self._decode(self._anchor)
        self._read = _reader(tokenizer)
        self.bytes_of: Callable[[int], bytes | None] = lru_cache(_KEPT)(self._bytes_of)

    def is_special(self, token: int) -> bool:
        """Whether decoding leaves it out."""
        return token in self._special

    def _bytes_of(self, token: int) -> bytes | None:
        text = self._decode([*self._anchor, token]).removeprefix(self._before)
        if _REPLACEMENT not in text:
            return text.encode("utf-8", "surrogatepass")
        piece = self._tokenizer.convert_ids_to_tokens(token)
        return None if piece is None else self._read(piece)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


def _reader(tokenizer: Any) -> Callable[[str], bytes | None]:
    """How the vocabulary writes bytes."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    kinds = set(_kinds(json.loads(decoder.__getstate__()))) if decoder is not None else set()
    if "ByteLevel" in kinds:
        return _byte_level
    return _byte_fallback if "ByteFallback" in kinds else lambda _: None


def _kinds(decoder: dict[str, Any]) -> Iterator[str]:
    yield decoder["type"]
    for part in decoder.get("decoders", ()):
        yield from _kinds(part)


def _byte_fallback(piece: str) -> bytes | None:
    found = _BYTE.fullmatch(piece)
    return bytes.fromhex(found[1]) if found else piece.encode()


def _byte_level(piece: str) -> bytes | None:
    letters = _letters()
    return bytes(letters[letter] for letter in piece) if set(piece) <= letters.keys() else piece.encode()


@lru_cache(1)
def _letters() -> dict[str, int]:
    """The byte that each letter stands for, as GPT-2 chose them: printable ones stand for themselves."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(own)]
    return {chr(byte): byte for byte in own} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
