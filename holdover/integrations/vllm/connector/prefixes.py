"""Keys of a request's prefixes."""

from __future__ import annotations

from collections.abc import Sequence

from holdover.state import KeyChain


class Prefixes:
    """Keys at any depths, computed once each.

    Args:
        namespace: what beside model and tokens decides whether two states may stand for each other.
        tokens: the request's tokens; more may be appended later.
        stride: tokens between the places from which a key is computed.
    """

    def __init__(self, namespace: bytes, tokens: Sequence[int], stride: int) -> None:
        self._tokens = tokens
        self._stride = stride
        self._chains = [KeyChain(namespace)]
        self._keys: dict[int, bytes] = {}

    def key(self, depth: int) -> bytes:
        """Key of the first ``depth`` tokens, no more than there are."""
        if depth not in self._keys:
            chain = self._chain(depth // self._stride).copy()
            chain.extend(self._tokens[chain.depth : depth])
            self._keys[depth] = chain.key()
        return self._keys[depth]

    def _chain(self, count: int) -> KeyChain:
        while len(self._chains) <= count:
            chain = self._chains[-1].copy()
            chain.extend(self._tokens[chain.depth : chain.depth + self._stride])
            self._chains.append(chain)
        return self._chains[count]
