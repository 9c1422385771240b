"""One token of one value tile of one head: read, correct, and append or fold."""

from __future__ import annotations

import triton.language as tl

from holdover.ops.deferred.kernels.parts import cumulative, decayed, folded, load_entries, token_decay, weighted
from holdover.ops.jit import jit


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
    columns: tl.constexpr,
    entries: tl.constexpr,
    fold_entries: tl.constexpr,
) -> None:
    """Program ``(sequence, head, tile)``, tiles fastest: those of one head share its log in the cache.

    The tile stays in registers from the read to the fold. All loads but the slot and its cursor share one wait, up to
    ``entries`` of the log; the log's go out before the base's, behind which they would come back late.
    """
    tiles: tl.constexpr = d_v // columns
    group: tl.constexpr = heads // key_heads
    width: tl.constexpr = d_k if per_key else 1
    program = tl.program_id(0)
    part = program % tiles
    head = program // tiles % heads
    sequence = (program // (tiles * heads)).to(tl.int64)
    row = tl.arange(0, d_k)
    channel = row if per_key else 0
    column = part * columns + tl.arange(0, columns)
    out += (sequence * heads + head) * d_v + column
    slot = tl.load(slots + sequence).to(tl.int64)
    if slot == 0:
        tl.store(out, tl.zeros([columns], tl.float32))
        return

    live = tl.load(length + slot)
    folds = live >= tl.load(limit + slot)
    cells = base + slot * base_stride + head * (d_k * d_v) + row[:, None] * d_v + column[None, :]
    keys += slot * keys_stride + head // group * (capacity * d_k)
    values += slot * values_stride + head * (capacity * d_v)
    decays += slot * decays_stride + head * (capacity * width)
    if scales is not None:
        scales += slot * scales_stride + head * capacity
    if rate is not None:
        rate += head
    raw_key = tl.load(k + sequence * k_stride + head // group * d_k + row)
    raw_query = tl.load(q + sequence * q_stride + head // group * d_k + row)
    value = tl.load(v + sequence * v_stride + head * d_v + column)
    now = token_decay(log_decay + sequence * log_decay_stride + head * width, rate, channel, floor)
    if beta is not None:
        strength = tl.load(beta + sequence * beta_stride + head).to(tl.float32)
    if weight is not None:
        key_weight = tl.load(weight + sequence * weight_stride + head).to(tl.float32)
    if skip is not None:
        skipped = tl.load(skip + head).to(tl.float32)
    if bonus is not None:
        own = tl.load(bonus + head * d_k + row).to(tl.float32)
    before = cumulative(decays, live, channel, width, capacity)
    if capacity > 0:
        recent = load_entries(keys, values, decays, scales, live, 0, row, column, d_k, d_v, per_key, entries)
    # the compiler would mix these loads with the base's, but moves none across a barrier
    tl.debug_barrier()
    tile = tl.load(cells).to(tl.float32)

    total = before + now
    until = before if reads_before else total
    query = raw_query.to(tl.float32)
    key = raw_key.to(tl.float32)
    value = value.to(tl.float32)
    key_scale = 1.0
    if delta:
        query *= tl.rsqrt(tl.sum(query * query, axis=0) + eps) * (d_k**-0.5)
        key_scale = tl.rsqrt(tl.sum(key * key, axis=0) + eps)
    if weight is not None:
        key_scale = key_weight
    key *= key_scale

    read = tl.zeros([columns], tl.float32)
    predicted = tl.zeros([columns], tl.float32)
    if capacity > 0:
        if live > 0:
            old, factor = decayed(recent[0], recent[2], recent[3], until, per_key)
            old_value = recent[1].to(tl.float32)
            read += weighted(query, old, factor, old_value)
            if delta:
                predicted += weighted(key, old, factor, old_value)
        if capacity > entries:
            first = entries
            while first < live:
                later = load_entries(keys, values, decays, scales, live, first, row, column, d_k, d_v, per_key, entries)
                old, factor = decayed(later[0], later[2], later[3], until, per_key)
                old_value = later[1].to(tl.float32)
                read += weighted(query, old, factor, old_value)
                if delta:
                    predicted += weighted(key, old, factor, old_value)
                first += entries
    # decays that are one number multiply sums, not channels
    if per_key:
        read += tl.sum(tile * (query * tl.exp(until))[:, None], axis=0)
        if delta:
            predicted += tl.sum(tile * (key * tl.exp(total))[:, None], axis=0)
    else:
        read += tl.sum(tile * query[:, None], axis=0) * tl.exp(until)
        if delta:
            predicted += tl.sum(tile * key[:, None], axis=0) * tl.exp(total)

    update = value
    if delta:
        update = (value - predicted) * strength
    if reads_before:
        read += tl.sum(query * own * key, axis=0) * update
    else:
        read += tl.sum(query * key, axis=0) * update
    if skip is not None:
        read += skipped * value
    tl.store(out, read)

    if folds:
        if capacity > 0:
            tile = folded(tile, keys, values, decays, scales, live, total, row, column, d_k, d_v, per_key, fold_entries)
        else:
            tile *= tl.exp(total)[:, None] if per_key else tl.exp(total)
        tl.store(cells, tile + key[:, None] * update[None, :])
    else:
        tl.store(values + live * d_v + column, update)
        # what all tiles share is written by one; none of them reads an entry that is not live yet
        if part == 0:
            if head % group == 0:
                tl.store(keys + live * d_k + row, raw_key)
            tl.store(decays + live * width + channel, total)
            if scales is not None:
                tl.store(scales + live, key_scale)
