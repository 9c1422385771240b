"""T tokens of one value tile of one head, all appended to the log: drafts, of which the caller may take some back."""

from __future__ import annotations

import triton.language as tl

from holdover.ops.deferred.kernels.parts import cumulative, decayed, folded, load_entries
from holdover.ops.jit import jit


@jit
def decay_since(
    log_decay: tl.tensor, rate: tl.tensor, stride: tl.tensor, token: tl.tensor, tokens: tl.constexpr,
    channel: tl.tensor, per_key: tl.constexpr, reads_before: tl.constexpr, floor: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Log decay from the call's start up to each token, and up to its read: ``[T, channels]`` or ``[T]``."""
    real = token < tokens
    if per_key:
        now = tl.load(log_decay + token[:, None] * stride + channel[None, :], mask=real[:, None], other=0.0)
    else:
        now = tl.load(log_decay + token * stride, mask=real, other=0.0)
    now = now.to(tl.float32)
    if rate is not None:
        now *= tl.load(rate).to(tl.float32)
    now = tl.maximum(now, floor, propagate_nan=tl.PropagateNan.ALL)
    since = tl.cumsum(now, axis=0)
    return since, since - now if reads_before else since


@jit
def token_rows(x: tl.tensor, stride: tl.tensor, token: tl.tensor, column: tl.tensor, tokens: tl.constexpr) -> tl.tensor:
    """``[T, columns]`` of an input; padding is 0."""
    return tl.load(x + token[:, None] * stride + column[None, :], mask=(token < tokens)[:, None], other=0.0)


@jit
def fold_blocks(
    base: tl.tensor, keys: tl.tensor, values: tl.tensor, decays: tl.tensor, scales: tl.tensor, live: tl.tensor,
    column: tl.tensor, d_k: tl.constexpr, d_v: tl.constexpr, capacity: tl.constexpr, per_key: tl.constexpr,
    rows: tl.constexpr, entries: tl.constexpr,
) -> None:  # fmt: skip
    """Write the logical state into the base's columns ``column``, some rows at a time."""
    width: tl.constexpr = d_k if per_key else 1
    for top in tl.range(0, d_k, rows):
        row = top + tl.arange(0, rows)
        cells = base + row[:, None] * d_v + column[None, :]
        tile = tl.load(cells).to(tl.float32)
        until = cumulative(decays, live, row if per_key else 0, width, capacity)
        tile = folded(tile, keys, values, decays, scales, live, until, row, column, d_k, d_v, per_key, entries)
        tl.store(cells, tile)


@jit
def verify_kernel(
    base: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    decays: tl.tensor,
    scales: tl.tensor,
    length: tl.tensor,
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
    q_token: tl.tensor,
    k_token: tl.tensor,
    v_token: tl.tensor,
    log_decay_token: tl.tensor,
    beta_token: tl.tensor,
    weight_token: tl.tensor,
    tokens: tl.constexpr,
    padded: tl.constexpr,
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
    columns: tl.constexpr,
    entries: tl.constexpr,
    stages: tl.constexpr,
    fold_rows: tl.constexpr,
    fold_entries: tl.constexpr,
) -> None:
    """Program ``(sequence, head, tile)``; ``T`` is padded to a power of two, and what is padding stays zero.

    A log without room is folded first. Of the drafts' entries only the values are written, which are the tile's own:
    other tiles may yet have to fold what the rest of them replaces, so that is `record_kernel`'s.
    """
    tiles: tl.constexpr = d_v // columns
    group: tl.constexpr = heads // key_heads
    width: tl.constexpr = d_k if per_key else 1
    program = tl.program_id(0)
    head = program // tiles % heads
    sequence = (program // (tiles * heads)).to(tl.int64)
    token = tl.arange(0, padded)
    real = token < tokens
    column = program % tiles * columns + tl.arange(0, columns)
    out += (sequence * tokens * heads + head) * d_v + token[:, None] * (heads * d_v) + column[None, :]
    slot = tl.load(slots + sequence).to(tl.int64)
    if slot == 0:
        tl.store(out, tl.zeros([padded, columns], tl.float32), mask=real[:, None])
        return

    live = tl.load(length + slot)
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

    if live + tokens > capacity:
        fold_blocks(
            base, keys, values, decays, scales, live, column, d_k, d_v, capacity, per_key, fold_rows, fold_entries
        )
        live *= 0
        # no thread reads the base or replaces a value before all have folded
        tl.debug_barrier()

    read = tl.zeros([padded, columns], tl.float32)
    predicted = tl.zeros([padded, columns], tl.float32)
    for top in tl.range(0, d_k, rows, num_stages=stages):
        row = top + tl.arange(0, rows)
        state = tl.load(base + row[:, None] * d_v + column[None, :]).to(tl.float32)
        query = token_rows(q, q_token, token, row, tokens).to(tl.float32)
        key = token_rows(k, k_token, token, row, tokens).to(tl.float32)
        if per_key:
            since, until = decay_since(
                log_decay, rate, log_decay_token, token, tokens, row, per_key, reads_before, floor
            )
            state *= tl.exp(cumulative(decays, live, row, width, capacity))[:, None]
            query *= tl.exp(until)
            key *= tl.exp(since)
        read += tl.sum(query[:, :, None] * state[None, :, :], axis=1)
        if delta:
            predicted += tl.sum(key[:, :, None] * state[None, :, :], axis=1)

    row = tl.arange(0, d_k)
    channel = row if per_key else 0
    before = cumulative(decays, live, channel, width, capacity)
    since, until = decay_since(log_decay, rate, log_decay_token, token, tokens, channel, per_key, reads_before, floor)
    raw_key = token_rows(k, k_token, token, row, tokens)
    query = token_rows(q, q_token, token, row, tokens).to(tl.float32)
    key = raw_key.to(tl.float32)
    key_scale = tl.full([padded], 1.0, tl.float32)
    if delta:
        query_scale = tl.rsqrt(tl.sum(query * query, axis=1) + eps) * (d_k**-0.5)
        key_scale = tl.rsqrt(tl.sum(key * key, axis=1) + eps)
        query *= query_scale[:, None]
        read *= query_scale[:, None]
        predicted *= key_scale[:, None]
    if weight is not None:
        weight += sequence * weight_stride + head
        key_scale = tl.load(weight + token * weight_token, mask=real, other=0.0).to(tl.float32)
    key *= key_scale[:, None]
    if not per_key:
        kept = tl.exp(before + since)[:, None]
        read *= kept
        predicted *= kept

    # entries are decayed up to the call's start, reads from there on: both factors are at most 1
    old_query = query * (tl.exp(until) if per_key else tl.exp(until)[:, None])
    old_key = key * (tl.exp(since) if per_key else tl.exp(since)[:, None])
    first = 0
    while first < live:
        recent = load_entries(keys, values, decays, scales, live, first, row, column, d_k, d_v, per_key, entries)
        old, factor = decayed(recent[0], recent[2], recent[3], before, per_key)
        value = recent[1].to(tl.float32)
        mix = tl.sum(old_query[:, None, :] * old[None, :, :], axis=2) * factor
        read += tl.sum(mix[:, :, None] * value[None, :, :], axis=1)
        if delta:
            mix = tl.sum(old_key[:, None, :] * old[None, :, :], axis=2) * factor
            predicted += tl.sum(mix[:, :, None] * value[None, :, :], axis=1)
        first += entries

    earlier = token[None, :] < token[:, None]
    if per_key:
        # the bound only matters where j is not before t, and there the product is thrown away
        mix = key[None, :, :] * tl.exp(tl.minimum(until[:, None, :] - since[None, :, :], 0.0))
        lower = tl.sum(key[:, None, :] * mix, axis=2)
        mix = tl.sum(query[:, None, :] * mix, axis=2)
    else:
        pairs = tl.exp(tl.minimum(until[:, None] - since[None, :], 0.0))
        lower = tl.sum(key[:, None, :] * key[None, :, :], axis=2) * pairs
        mix = tl.sum(query[:, None, :] * key[None, :, :], axis=2) * pairs
    lower = tl.where(earlier, lower, 0.0)
    mix = tl.where(earlier, mix, 0.0)

    value = token_rows(v + sequence * v_stride + head * d_v, v_token, token, column, tokens).to(tl.float32)
    update = value
    if delta:
        beta += sequence * beta_stride + head
        strength = tl.load(beta + token * beta_token, mask=real, other=0.0).to(tl.float32)[:, None]
        update = strength * (value - predicted)
        lower *= strength
        # substitution: once row t is corrected, no later row changes it
        for t in tl.static_range(1, tokens):
            held = tl.sum(tl.where((token == t)[:, None], lower, 0.0), axis=0)
            update -= tl.where((token == t)[:, None], tl.sum(held[:, None] * update, axis=0)[None, :], 0.0)
    if reads_before:
        overlap = tl.sum(query * tl.load(bonus + head * d_k + row).to(tl.float32)[None, :] * key, axis=1)
    else:
        overlap = tl.sum(query * key, axis=1)
    read += overlap[:, None] * update + tl.sum(mix[:, :, None] * update[None, :, :], axis=1)
    if skip is not None:
        read += tl.load(skip + head).to(tl.float32) * value
    tl.store(out, read, mask=real[:, None])

    entry = live + token
    tl.store(values + entry[:, None] * d_v + column[None, :], update, mask=real[:, None])
