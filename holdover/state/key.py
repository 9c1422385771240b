"""Chained hash of the tokens that a state has seen.

Text is never a key: the chain starts from a namespace (model digest, plan, tenant salt) and takes token ids, so two
states have the same key exactly when the same model saw the same tokens for the same tenant.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable

KEY_BYTES = 16


class KeyChain:
    """Running hash over token ids, with the number of tokens taken so far.

    Args:
        namespace: everything but the tokens that decides whether two states may stand for each other.
    """

    __slots__ = ("_hash", "depth")

    def __init__(self, namespace: bytes) -> None:
        self._hash = hashlib.blake2b(digest_size=KEY_BYTES, key=hashlib.blake2b(namespace, digest_size=32).digest())
        self.depth = 0

    def extend(self, tokens: Iterable[int]) -> None:
        """Take more tokens, in order."""
        ids = array("q", tokens)
        self._hash.update(ids.tobytes())
        self.depth += len(ids)

    def key(self) -> bytes:
        """Hash of the tokens taken so far, 16 bytes."""
        return self._hash.copy().digest()

    def copy(self) -> KeyChain:
        """Independent chain at the same depth."""
        twin = KeyChain.__new__(KeyChain)
        twin._hash = self._hash.copy()
        twin.depth = self.depth
        return twin


def chain_of(namespace: bytes, tokens: Iterable[int]) -> KeyChain:
    """Chain of a whole token sequence at once."""
    chain = KeyChain(namespace)
    chain.extend(tokens)
    return chain
