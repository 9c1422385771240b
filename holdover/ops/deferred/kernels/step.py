"""One token of one value tile of one head: read, correct, and append or fold."""

from __future__ import annotations

import triton.language as tl

from holdover.ops.deferred.kernels.jit import jit
from holdover.ops.deferred.kernels.parts import cumulative, fold_tile, live_keys, live_values, token_decay


@jit
def step_kernel(
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
    log_decay: tl.tensor,
    beta: tl.tensor,
    weight: tl.tensor,
    rate: tl.tensor,
    skip: tl.tensor,
    bonus: tl.tensor,
    out: tl.tensor,
    base_stride: tl.tensor,
    keys_stride: tl.tensor,
    values_stride: tl.tensor,
    decays_stride: tl.tensor,
    scales_stride: tl.tensor,
    q_stride: tl.tensor,
    k_stride: tl.tensor,
    v_stride: tl.tensor,
    log_decay_stride: tl.tensor,
    beta_stride: tl.tensor,
    weight_stride: tl.tensor,
    heads: tl.constexpr,
    key_heads: tl.constexpr,
    d_k: tl.constexpr,
    d_v: tl.constexpr,
    capacity: tl.constexpr,
    delta: tl.constexpr,
    per_key: tl.constexpr,
    reads_before: tl.constexpr,
    eps: tl.constexpr,
    floor: tl.constexpr,
    rows: tl.constexpr,
    fold_rows: tl.constexpr,
    columns: tl.constexpr,
    entries: tl.constexpr,
    stages: tl.constexpr,
) -> None:
    """Program ``(sequence, head, tile)``, tiles fastest: those of one head share its log in the cache."""
    tiles: tl.constexpr = d_v // columns
    group: tl.constexpr = heads // key_heads
    width: tl.constexpr = d_k if per_key else 1
    program = tl.program_id(0)
    tile = program % tiles
    head = program // tiles % heads
    sequence = (program // (tiles * heads)).to(tl.int64)
    column = tile * columns + tl.arange(0, columns)
    out += (sequence * heads + head) * d_v + column
    slot = tl.load(slots + sequence).to(tl.int64)
    if slot == 0:
        tl.store(out, tl.zeros([columns], tl.float32))
        return

    live = tl.load(length + slot)
    folds_at = tl.load(limit + slot)
    base += slot * base_stride + head * (d_k * d_v)
    keys += slot * keys_stride + head // group * (capacity * d_k)
    values += slot * values_stride + head * (capacity * d_v)
    decays += slot * decays_stride + head * (capacity * width)
    if scales is not None:
        scales += slot * scales_stride + head * capacity
    q += sequence * q_stride + head // group * d_k
    k += sequence * k_stride + head // group * d_k
    log_decay += sequence * log_decay_stride + head * width
    if rate is not None:
        rate += head

    # the base's loads are in flight before anything else is asked for
    read = tl.zeros([columns], tl.float32)
    predicted = tl.zeros([columns], tl.float32)
    for top in tl.range(0, d_k, rows, num_stages=stages):
        row = top + tl.arange(0, rows)
        state = tl.load(base + row[:, None] * d_v + column[None, :])
        query = tl.load(q + row).to(tl.float32)
        key = tl.load(k + row).to(tl.float32)
        if per_key:
            before = cumulative(decays, live, row, width, capacity)
            total = before + token_decay(log_decay, rate, row, floor)
            query *= tl.exp(before if reads_before else total)
            key *= tl.exp(total)
        read += tl.sum(state * query[:, None], axis=0)
        if delta:
            predicted += tl.sum(state * key[:, None], axis=0)

    row = tl.arange(0, d_k)
    channel = row if per_key else 0
    before = cumulative(decays, live, channel, width, capacity)
    total = before + token_decay(log_decay, rate, channel, floor)
    until = before if reads_before else total
    raw_key = tl.load(k + row)
    query = tl.load(q + row).to(tl.float32)
    key = raw_key.to(tl.float32)
    key_scale = 1.0
    if delta:
        query_scale = tl.rsqrt(tl.sum(query * query, axis=0) + eps) * (d_k**-0.5)
        key_scale = tl.rsqrt(tl.sum(key * key, axis=0) + eps)
        query *= query_scale
        read *= query_scale
        predicted *= key_scale
    if weight is not None:
        key_scale = tl.load(weight + sequence * weight_stride + head).to(tl.float32)
    key *= key_scale
    if not per_key:
        kept = tl.exp(total)
        read *= kept
        predicted *= kept

    if capacity > 0:
        first = 0
        while first < live:
            old = live_keys(keys, decays, scales, live, first, row, until, d_k, per_key, entries)
            value = live_values(values, live, first, column, d_v, entries)
            read += tl.sum(tl.sum(old * query[None, :], axis=1)[:, None] * value, axis=0)
            if delta:
                predicted += tl.sum(tl.sum(old * key[None, :], axis=1)[:, None] * value, axis=0)
            first += entries

    value = tl.load(v + sequence * v_stride + head * d_v + column).to(tl.float32)
    update = value
    if delta:
        update = (value - predicted) * tl.load(beta + sequence * beta_stride + head).to(tl.float32)
    if reads_before:
        read += tl.sum(query * tl.load(bonus + head * d_k + row).to(tl.float32) * key, axis=0) * update
    else:
        read += tl.sum(query * key, axis=0) * update
    if skip is not None:
        read += tl.load(skip + head).to(tl.float32) * value
    tl.store(out, read)

    if live < folds_at:
        tl.store(values + live * d_v + column, update)
        # what all tiles share is written by one; none of them reads an entry that is not live yet
        if tile == 0:
            if head % group == 0:
                tl.store(keys + live * d_k + row, raw_key)
            tl.store(decays + live * width + channel, total)
            if scales is not None:
                tl.store(scales + live, key_scale)
    elif live == capacity:
        # most folds: the compiler sees that no entry is masked
        fold_tile(
            base, base, keys, values, decays, scales, live, log_decay, rate, k, key_scale, update, column,
            d_k, d_v, capacity, capacity <= 16, per_key, floor, fold_rows, entries, stages,
        )  # fmt: skip
    elif live == 0:
        # nothing to replay: the dense recurrence in place
        fold_tile(
            base, base, keys, values, decays, scales, live, log_decay, rate, k, key_scale, update, column,
            d_k, d_v, 0, True, per_key, floor, fold_rows, entries, stages,
        )  # fmt: skip
    elif capacity > 0:
        fold_tile(
            base, base, keys, values, decays, scales, live, log_decay, rate, k, key_scale, update, column,
            d_k, d_v, capacity, capacity <= 16, per_key, floor, fold_rows, entries, stages,
        )  # fmt: skip
