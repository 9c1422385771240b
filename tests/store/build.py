"""Tiny KV layouts, pools with poison on, and rows painted with the prefix that they belong to."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from holdover.arch.layout import AttentionLayer, KVLayout
from holdover.store import KVPool
from tests.state.build import number


def attention(index: int, heads: int = 1, d_k: int = 2, d_v: int = 2) -> AttentionLayer:
    return AttentionLayer(index, "heads", heads, d_k, d_v, query_heads=heads)


NONE = KVLayout((), "float32")
ONE = KVLayout((attention(2),), "float32")
MIXED = KVLayout((attention(1), attention(4, 2, 3, 1), AttentionLayer(7, "latent", 1, 4, 2, 8)), "float32")
LAYOUTS = {"none": NONE, "one": ONE, "mixed": MIXED}

# what tells the second plane of a row from the first
_SECOND = 0.5


def write_rows(kv: KVPool, rows: torch.Tensor, tokens: Sequence[int], salt: int = 0) -> None:
    """Fill ``rows``, those of the last tokens of ``tokens``, with what the model makes of each prefix."""
    for layer in kv.layout.layers:
        values = _values(tokens, layer.index, salt)[len(tokens) - len(rows) :, None, None]
        first, second = (values.expand(-1, layer.heads, width) for width in (layer.d_k, layer.d_v))
        kv.write(layer.index, rows, first, second + _SECOND)


def are_rows_of(kv: KVPool, rows: torch.Tensor, tokens: Sequence[int], salt: int = 0) -> torch.Tensor:
    """Which of ``rows`` hold exactly the KV of the last tokens of ``tokens``, each after its own prefix; bool."""
    right = torch.ones(len(rows), dtype=torch.bool)
    for layer in kv.layout.layers:
        values = _values(tokens, layer.index, salt)[len(tokens) - len(rows) :, None, None]
        first, second = kv.planes(layer.index)
        right &= first[rows].eq(values).flatten(1).all(1) & second[rows].eq(values + _SECOND).flatten(1).all(1)
    return right


def assert_rows_of(kv: KVPool, rows: torch.Tensor, tokens: Sequence[int], salt: int = 0) -> None:
    """Fail unless `are_rows_of` says so of all."""
    right = are_rows_of(kv, rows, tokens, salt)
    assert right.all(), f"rows {rows[~right].tolist()} are not those of {tokens}"


def _values(tokens: Sequence[int], layer: int, salt: int) -> torch.Tensor:
    prefixes = [number(tokens[: i + 1], layer, salt) for i in range(len(tokens))]
    return torch.tensor(prefixes, dtype=torch.float32)
