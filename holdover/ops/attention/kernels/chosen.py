"""Attention of chosen tokens: a tile of queries at any positions goes over the keys up to its last one."""

from __future__ import annotations

import triton.language as tl

from holdover.ops.attention.kernels.attend import read_rows
from holdover.ops.jit import jit


@jit
def chosen_kernel(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    positions: tl.tensor,
    out: tl.tensor,
    scale: tl.tensor,
    tokens: tl.tensor,
    length: tl.tensor,
    q_token: tl.tensor,
    q_head: tl.tensor,
    keys_row: tl.tensor,
    keys_head: tl.tensor,
    values_row: tl.tensor,
    values_head: tl.tensor,
    heads: tl.constexpr,
    group: tl.constexpr,
    width: tl.constexpr,
    columns: tl.constexpr,
    value_width: tl.constexpr,
    value_columns: tl.constexpr,
    rows: tl.constexpr,
    block: tl.constexpr,
    stages: tl.constexpr,
    interpreted: tl.constexpr,
) -> None:
    """Program ``(tile of queries, query head)``; ``scale`` is to base 2. Tiles with the most keys start first."""
    head = tl.program_id(1).to(tl.int64)
    query = ((tl.num_programs(0) - 1 - tl.program_id(0)) * rows + tl.arange(0, rows)).to(tl.int64)
    real = query < tokens
    # a query that is not there sees the first key, as all do
    at = tl.load(positions + query, mask=real, other=0)
    left = read_rows(q + head * q_head, query, q_token, real, width, columns)
    keys += head // group * keys_head
    values += head // group * values_head

    largest = tl.full([rows], float("-inf"), tl.float32)
    weight = tl.zeros([rows], tl.float32)
    mixed = tl.zeros([rows, value_columns], tl.float32)
    begin, end = 0, tl.max(at, axis=0) + 1
    if interpreted:
        # Triton 3.6's interpreter cannot make an index of a scalar under NumPy 2.4, and makes one of a lone number
        begin, end = 0, end.handle.data.item()
    for top in tl.range(begin, end, block, num_stages=stages):
        position = (top + tl.arange(0, block)).to(tl.int64)
        inside = position < length
        key = read_rows(keys, position, keys_row, inside, width, columns)
        score = tl.dot(left, key.trans(), input_precision="ieee") * scale
        score = tl.where(position[None, :] <= at[:, None], score, float("-inf"))
        # every query sees the first block's first key: no maximum is infinite
        larger = tl.maximum(largest, tl.max(score, axis=1))
        shrunk = tl.exp2(largest - larger)
        score = tl.exp2(score - larger[:, None])
        weight = weight * shrunk + tl.sum(score, axis=1)
        value = read_rows(values, position, values_row, inside, value_width, value_columns)
        mixed = tl.dot(score.to(value.dtype), value, mixed * shrunk[:, None], input_precision="ieee")
        largest = larger

    column = tl.arange(0, value_columns)
    cells = out + (query * heads + head)[:, None] * value_width + column[None, :]
    tl.store(cells, mixed / weight[:, None], mask=real[:, None] & (column < value_width)[None, :])
