"""DeltaLog's staged form: one kernel for what the value tiles of a head share, another for the tiles."""

from __future__ import annotations

import triton.language as tl

from holdover.ops.deferred.kernels.parts import cumulative, decayed, folded, load_entries, token_decay
from holdover.ops.jit import jit


@jit
def prepare_kernel(
    keys: tl.tensor,
    values: tl.tensor,
    decays: tl.tensor,
    scales: tl.tensor,
    length: tl.tensor,
    limit: tl.tensor,
    slots: tl.tensor,
    q: tl.tensor,
    k: tl.tensor,
    log_decay: tl.tensor,
    products: tl.tensor,
    factors: tl.tensor,
    totals: tl.tensor,
    keys_stride: tl.tensor,
    values_stride: tl.tensor,
    decays_stride: tl.tensor,
    scales_stride: tl.tensor,
    heads: tl.constexpr,
    key_heads: tl.constexpr,
    d_k: tl.constexpr,
    d_v: tl.constexpr,
    capacity: tl.constexpr,
    per_key: tl.constexpr,
    eps: tl.constexpr,
    floor: tl.constexpr,
    entries: tl.constexpr,
) -> None:
    """Program ``(sequence, head)``: products of query and key with every live entry, and the entry that tiles share.

    It writes ``products [B, H, 2, entries]``, the query's and then the key's; ``factors [B, H, 3]``: the query's and
    the key's inverse norms and the product of both; ``totals [B, H, d_k or 1]``: decays up to and with this token.
    """
    group: tl.constexpr = heads // key_heads
    width: tl.constexpr = d_k if per_key else 1
    program = tl.program_id(0).to(tl.int64)
    head = program % heads
    sequence = program // heads
    slot = tl.load(slots + sequence).to(tl.int64)
    if slot == 0:
        return
    row = tl.arange(0, d_k)
    channel = row if per_key else 0
    live = tl.load(length + slot)
    keys += slot * keys_stride + head // group * (capacity * d_k)
    values += slot * values_stride + head * (capacity * d_v)
    decays += slot * decays_stride + head * (capacity * width)
    scales += slot * scales_stride + head * capacity
    raw_key = tl.load(k + (sequence * key_heads + head // group) * d_k + row)
    query = tl.load(q + (sequence * key_heads + head // group) * d_k + row).to(tl.float32)
    now = token_decay(log_decay + program * width, None, channel, floor)
    total = cumulative(decays, live, channel, width, capacity) + now
    # the values that come with the entries are not used, and so never loaded
    recent = load_entries(keys, values, decays, scales, live, 0, row, tl.arange(0, 1), d_k, d_v, per_key, entries)

    key = raw_key.to(tl.float32)
    query_scale = tl.rsqrt(tl.sum(query * query, axis=0) + eps) * (d_k**-0.5)
    key_scale = tl.rsqrt(tl.sum(key * key, axis=0) + eps)
    query *= query_scale
    key *= key_scale
    old, factor = decayed(recent[0], recent[2], recent[3], total, per_key)
    entry = tl.arange(0, entries)
    products += program * (2 * entries) + entry
    tl.store(products, tl.sum(old * query[None, :], axis=1) * factor)
    tl.store(products + entries, tl.sum(old * key[None, :], axis=1) * factor)
    factors += program * 3
    tl.store(factors, query_scale)
    tl.store(factors + 1, key_scale)
    tl.store(factors + 2, tl.sum(query * key, axis=0))
    tl.store(totals + program * width + channel, total)
    if live < tl.load(limit + slot):
        if head % group == 0:
            tl.store(keys + live * d_k + row, raw_key)
        tl.store(decays + live * width + channel, total)
        tl.store(scales + live, key_scale)


@jit
def tile_kernel(
    base: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    decays: tl.tensor,
    scales: tl.tensor,
    length: tl.tensor,
    limit: tl.tensor,
    slots: tl.tensor,
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    beta: tl.tensor,
    products: tl.tensor,
    factors: tl.tensor,
    totals: tl.tensor,
    out: tl.tensor,
    base_stride: tl.tensor,
    keys_stride: tl.tensor,
    values_stride: tl.tensor,
    decays_stride: tl.tensor,
    scales_stride: tl.tensor,
    heads: tl.constexpr,
    key_heads: tl.constexpr,
    d_k: tl.constexpr,
    d_v: tl.constexpr,
    capacity: tl.constexpr,
    per_key: tl.constexpr,
    entries: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    """Program ``(sequence, head, tile)``: reads what was prepared in place of the log's keys and decays."""
    tiles: tl.constexpr = d_v // columns
    group: tl.constexpr = heads // key_heads
    width: tl.constexpr = d_k if per_key else 1
    program = tl.program_id(0)
    of_head = (program // tiles).to(tl.int64)
    head = of_head % heads
    sequence = of_head // heads
    row = tl.arange(0, d_k)
    channel = row if per_key else 0
    column = program % tiles * columns + tl.arange(0, columns)
    out += of_head * d_v + column
    slot = tl.load(slots + sequence).to(tl.int64)
    if slot == 0:
        tl.store(out, tl.zeros([columns], tl.float32))
        return

    live = tl.load(length + slot)
    folds = live >= tl.load(limit + slot)
    cells = base + slot * base_stride + head * (d_k * d_v) + row[:, None] * d_v + column[None, :]
    values += slot * values_stride + head * (capacity * d_v)
    entry = tl.arange(0, entries)
    query_product = tl.load(products + of_head * (2 * entries) + entry)
    key_product = tl.load(products + of_head * (2 * entries) + entries + entry)
    query_scale = tl.load(factors + of_head * 3)
    key_scale = tl.load(factors + of_head * 3 + 1)
    overlap = tl.load(factors + of_head * 3 + 2)
    total = tl.load(totals + of_head * width + channel)
    query = tl.load(q + (sequence * key_heads + head // group) * d_k + row).to(tl.float32) * query_scale
    key = tl.load(k + (sequence * key_heads + head // group) * d_k + row).to(tl.float32) * key_scale
    value = tl.load(v + of_head * d_v + column).to(tl.float32)
    strength = tl.load(beta + of_head).to(tl.float32)
    alive = entry[:, None] + column[None, :] * 0 < live
    old_value = tl.load(values + entry[:, None] * d_v + column[None, :], mask=alive, other=0.0)
    # as in our step, the log's loads go out before the base's
    tl.debug_barrier()
    tile = tl.load(cells)

    read = tl.sum(query_product[:, None] * old_value, axis=0)
    predicted = tl.sum(key_product[:, None] * old_value, axis=0)
    if per_key:
        kept = tl.exp(total)
        read += tl.sum(tile * (query * kept)[:, None], axis=0)
        predicted += tl.sum(tile * (key * kept)[:, None], axis=0)
    else:
        read += tl.sum(tile * query[:, None], axis=0) * tl.exp(total)
        predicted += tl.sum(tile * key[:, None], axis=0) * tl.exp(total)
    update = (value - predicted) * strength
    tl.store(out, read + overlap * update)

    if folds:
        keys += slot * keys_stride + head // group * (capacity * d_k)
        decays += slot * decays_stride + head * (capacity * width)
        scales += slot * scales_stride + head * capacity
        tile = folded(tile, keys, values, decays, scales, live, total, row, column, d_k, d_v, per_key, 1)
        tl.store(cells, tile + key[:, None] * update[None, :])
    else:
        tl.store(values + live * d_v + column, update)
