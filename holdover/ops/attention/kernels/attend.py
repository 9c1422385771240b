"""Decode attention in two launches: parts of sequences, then what the parts found put together.

Scores are ``[tokens, queries]`` and outputs ``[columns, queries]``: the long sides come first, where a tensor core
wants 64, and the queries stay in shared memory.
"""

from __future__ import annotations

import triton.language as tl

from holdover.ops.jit import jit


@jit
def cut(
    length: tl.tensor,
    window: tl.tensor,
    parts: tl.tensor,
    longest: tl.tensor,
    tokens: tl.constexpr,
    block: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """First position that a query sees, tokens of a part, and number of parts of one sequence."""
    first = length * 0
    if window is not None:
        first = tl.maximum(length - tokens - window + 1, 0)
    span = length - first
    size = tl.cdiv(tl.cdiv(span, parts), block) * block
    size = tl.minimum(tl.maximum(size, block), longest)
    return first, size, tl.cdiv(span, size)


@jit
def read_rows(
    plane: tl.tensor, row: tl.tensor, stride: tl.tensor, inside: tl.tensor, width: tl.constexpr, columns: tl.constexpr
) -> tl.tensor:
    """``[rows, columns]`` of a plane; zeros past its width and where not ``inside``."""
    column = tl.arange(0, columns)
    cells = plane + row[:, None] * stride + column[None, :]
    if width == columns:
        tile = tl.load(cells, mask=inside[:, None], other=0.0)
    else:
        tile = tl.load(cells, mask=inside[:, None] & (column < width)[None, :], other=0.0)
    return tile


@jit
def attend_kernel(
    q: tl.tensor,
    q_rest: tl.tensor,
    keys: tl.tensor,
    keys_rest: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    seats: tl.tensor,
    lengths: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    weights: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    splits: tl.tensor,
    parts: tl.tensor,
    longest: tl.tensor,
    cells: tl.tensor,
    q_batch: tl.tensor,
    q_token: tl.tensor,
    q_head: tl.tensor,
    q_rest_batch: tl.tensor,
    q_rest_token: tl.tensor,
    q_rest_head: tl.tensor,
    keys_row: tl.tensor,
    keys_head: tl.tensor,
    keys_rest_row: tl.tensor,
    keys_rest_head: tl.tensor,
    values_row: tl.tensor,
    values_head: tl.tensor,
    table_seat: tl.tensor,
    tokens: tl.constexpr,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    width: tl.constexpr,
    columns: tl.constexpr,
    rest_width: tl.constexpr,
    rest_columns: tl.constexpr,
    value_width: tl.constexpr,
    value_columns: tl.constexpr,
    dtype: tl.constexpr,
    block: tl.constexpr,
    rows: tl.constexpr,
    stages: tl.constexpr,
    interpreted: tl.constexpr,
) -> None:
    """Program ``(sequence, part, KV head, tile of queries)``, tiles fastest: they read the same keys.

    Keys are the sum of two parts, the second of which may be absent. Without ``values`` the keys' first part serves.
    A sequence of one part goes to ``out``; others leave each part's output in ``partial [splits, cells, Dv]`` and the
    logarithm to base 2 of its weight in ``weights [splits, cells]``, cells being those of ``[B, T, Hq]``.
    """
    group: tl.constexpr = heads // kv_heads
    tiles: tl.constexpr = (tokens * group + rows - 1) // rows
    program = tl.program_id(0)
    kv_head = program // tiles % kv_heads
    part = program // (tiles * kv_heads) % splits
    sequence = (program // (tiles * kv_heads * splits)).to(tl.int64)
    length = tl.load(lengths + sequence)
    first, size, used = cut(length, window, parts, longest, tokens, block)
    # a padding row has no part; the first program writes its zeros
    if part >= tl.maximum(used, 1):
        return

    query = program % tiles * rows + tl.arange(0, rows)
    real = query < tokens * group
    token = query // group
    head = kv_head * group + query % group
    last = length - tokens + token
    q_cells = token * q_token + head * q_head
    # transposed once, out here
    left = read_rows(q + sequence * q_batch, q_cells, 1, real, width, columns).to(dtype).trans()
    if q_rest is not None:
        q_cells = token * q_rest_token + head * q_rest_head
        left_rest = read_rows(q_rest + sequence * q_rest_batch, q_cells, 1, real, rest_width, rest_columns)
        left_rest = left_rest.to(dtype).trans()
        keys_rest += kv_head * keys_rest_head
    keys += kv_head * keys_head
    if values is not None:
        values += kv_head * values_head
    table += tl.load(seats + sequence).to(tl.int64) * table_seat

    largest = tl.full([rows], float("-inf"), tl.float32)
    # added up over a block's tokens after the last one: a sum across warps less in every turn
    weight = tl.zeros([block, rows], tl.float32)
    mixed = tl.zeros([value_columns, rows], tl.float32)
    begin = first + part * size
    end = tl.minimum(begin + size, length)
    if interpreted:
        # Triton 3.6's interpreter cannot make an index of a scalar under NumPy 2.4
        begin, end = begin.handle.data.item(), end.handle.data.item()
    for top in tl.range(begin, end, block, num_stages=stages):
        position = top + tl.arange(0, block)
        inside = position < end
        row = tl.load(table + position, mask=inside, other=0).to(tl.int64)
        key = read_rows(keys, row, keys_row, inside, width, columns).to(dtype)
        score = tl.dot(key, left, input_precision="ieee")
        if q_rest is not None:
            key_rest = read_rows(keys_rest, row, keys_rest_row, inside, rest_width, rest_columns).to(dtype)
            score = tl.dot(key_rest, left_rest, score, input_precision="ieee")
        visible = position[:, None] <= last[None, :]
        if window is not None:
            visible &= position[:, None] > last[None, :] - window
        score = tl.where(visible, score * scale, float("-inf"))
        larger = tl.maximum(largest, tl.max(score, axis=0))
        # a query may see nothing of a part
        origin = tl.where(larger == float("-inf"), 0.0, larger)
        shrunk = tl.exp2(largest - origin)
        score = tl.exp2(score - origin[None, :])
        weight = weight * shrunk[None, :] + score
        mixed *= shrunk[None, :]
        value = key if values is None else read_rows(values, row, values_row, inside, value_width, value_columns)
        mixed = tl.dot(value.to(dtype).trans(), score.to(dtype), mixed, input_precision="ieee")
        largest = larger

    total = tl.sum(weight, axis=0)
    total = tl.where(total > 0, total, 1.0)
    mixed /= total[None, :]
    column = tl.arange(0, value_columns)
    cell = (sequence * tokens + token) * heads + head
    stored = (column < value_width)[:, None] & real[None, :]
    target = cell[None, :] * value_width + column[:, None]
    if partial is None:
        tl.store(out + target, mixed, mask=stored)
    else:
        if used <= 1:
            tl.store(out + target, mixed, mask=stored)
        else:
            before = part.to(tl.int64) * cells
            tl.store(partial + before * value_width + target, mixed, mask=stored)
            tl.store(weights + before + cell, largest + tl.log2(total), mask=real)


@jit
def combine_kernel(
    lengths: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    weights: tl.tensor,
    window: tl.tensor,
    parts: tl.tensor,
    longest: tl.tensor,
    cells: tl.tensor,
    tokens: tl.constexpr,
    heads: tl.constexpr,
    value_width: tl.constexpr,
    padded_splits: tl.constexpr,
    block: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    """Mean of the parts' outputs by weight; a program has some columns of one cell of ``[B, T, Hq]``."""
    tiles: tl.constexpr = (value_width + columns - 1) // columns
    cell = (tl.program_id(0) // tiles).to(tl.int64)
    length = tl.load(lengths + cell // (tokens * heads))
    _, _, used = cut(length, window, parts, longest, tokens, block)
    if used <= 1:
        return
    part = tl.arange(0, padded_splits)
    found = part < used
    before = part.to(tl.int64) * cells + cell
    weight = tl.load(weights + before, mask=found, other=float("-inf"))
    weight = tl.exp2(weight - tl.max(weight, axis=0))
    column = tl.program_id(0) % tiles * columns + tl.arange(0, columns)
    inside = column < value_width
    mixed = tl.load(
        partial + before[:, None] * value_width + column[None, :], mask=found[:, None] & inside[None, :], other=0.0
    )
    mixed = tl.sum(mixed * weight[:, None], axis=0) / tl.sum(weight, axis=0)
    tl.store(out + cell * value_width + column, mixed, mask=inside)
