"""Keys of a request's prefixes at vLLM's block boundaries."""

from __future__ import annotations

from collections.abc import Sequence

from holdover.state import KeyChain


class Prefixes:
    """Keys at the multiples of the block size, computed once each.

    Args:
        namespace: what beside model and tokens decides whether two states may stand for each other.
        tokens: the request's tokens; more may be appended later.
        block_size: tokens of a block.
    """

    def __init__(self, namespace: bytes, tokens: Sequence[int], block_size: int) -> None:
        self._chain = KeyChain(namespace)
        self._tokens = tokens
        self._block_size = block_size
        self._keys = [self._chain.key()]

    def key(self, depth: int) -> bytes:
        """Key of the first ``depth`` tokens, a multiple of the block size and no more than there are."""
        while self._chain.depth < depth:
            start = self._chain.depth
            self._chain.extend(self._tokens[start : start + self._block_size])
            self._keys.append(self._chain.key())
        return self._keys[depth // self._block_size]
