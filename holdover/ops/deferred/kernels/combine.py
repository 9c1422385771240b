"""What the value tiles of a head share of several tokens: every output as a combination of what is known before them.

Each output and each update is linear in the state before the call and in the tokens' values. A *row* says how it reads
the state, a *share* how it takes a log entry's or a token's value. The recurrence among the tokens, the delta rule's
triangular system among it, is solved here once for a head; tiles only multiply.
"""

from __future__ import annotations

import triton.language as tl

from holdover.ops.deferred.kernels.parts import cumulative, token_decay
from holdover.ops.deferred.kernels.products import product
from holdover.ops.jit import jit


@jit
def shares_of(
    keys: tl.tensor, decays: tl.tensor, scales: tl.tensor, rows: tl.tensor, live: tl.tensor, entry: tl.tensor,
    result: tl.tensor, real: tl.tensor, d_k: tl.constexpr, capacity: tl.constexpr, per_key: tl.constexpr,
    channels: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """How rows take log entries' values: ``[entries, results]``."""
    alive = entry < live
    shares = tl.zeros([entry.shape[0], result.shape[0]], tl.float32)
    for top in tl.range(0, d_k, channels, num_stages=4):
        part = top + tl.arange(0, channels)
        inside = part < d_k
        cells = entry[:, None] * d_k + part[None, :]
        mask = alive[:, None] & inside[None, :]
        key = tl.load(keys + cells, mask=mask, other=0.0)
        row = tl.load(rows + result[None, :] * d_k + part[:, None], mask=real[None, :] & inside[:, None], other=0.0)
        if per_key:
            until = tl.load(decays + (live - 1) * d_k + part, mask=inside, other=0.0)
            key = key.to(tl.float32) * tl.exp(until[None, :] - tl.load(decays + cells, mask=mask, other=0.0))
        shares = product(key, row, shares)
    if not per_key:
        until = cumulative(decays, live, 0, 1, capacity)
        shares *= tl.exp(until - tl.load(decays + entry, mask=alive, other=0.0))[:, None]
    if scales is not None:
        shares *= tl.load(scales + entry, mask=alive, other=0.0)[:, None]
    return shares


@jit
def combine_kernel(
    keys: tl.tensor,
    decays: tl.tensor,
    scales: tl.tensor,
    length: tl.tensor,
    slots: tl.tensor,
    q: tl.tensor,
    k: tl.tensor,
    log_decay: tl.tensor,
    beta: tl.tensor,
    weight: tl.tensor,
    rate: tl.tensor,
    skip: tl.tensor,
    bonus: tl.tensor,
    rows: tl.tensor,
    old_shares: tl.tensor,
    new_shares: tl.tensor,
    keys_stride: tl.tensor,
    decays_stride: tl.tensor,
    scales_stride: tl.tensor,
    q_stride: tl.tensor,
    k_stride: tl.tensor,
    log_decay_stride: tl.tensor,
    beta_stride: tl.tensor,
    weight_stride: tl.tensor,
    q_token: tl.tensor,
    k_token: tl.tensor,
    log_decay_token: tl.tensor,
    beta_token: tl.tensor,
    weight_token: tl.tensor,
    tokens: tl.constexpr,
    padded: tl.constexpr,
    results: tl.constexpr,
    heads: tl.constexpr,
    key_heads: tl.constexpr,
    d_k: tl.constexpr,
    capacity: tl.constexpr,
    delta: tl.constexpr,
    per_key: tl.constexpr,
    reads_before: tl.constexpr,
    eps: tl.constexpr,
    floor: tl.constexpr,
    entries: tl.constexpr,
    taken: tl.constexpr,
    channels: tl.constexpr,
) -> None:
    """Program ``(sequence, head)``. Results are the outputs and, from ``padded`` on, the delta rule's updates.

    Writes ``rows [results, d_k]`` on the state decayed to the call's start, ``old_shares [live, results]`` of log
    entries as stored, up to a multiple of ``entries``, and ``new_shares [results, taken]`` of the tokens' values.
    """
    group: tl.constexpr = heads // key_heads
    width: tl.constexpr = d_k if per_key else 1
    program = tl.program_id(0).to(tl.int64)
    head = (program % heads).to(tl.int32)
    sequence = program // heads
    slot = tl.load(slots + sequence).to(tl.int64)
    if slot == 0:
        return
    live = tl.load(length + slot)
    row = tl.arange(0, d_k)
    channel = row if per_key else 0
    token = tl.arange(0, taken)
    keys += slot * keys_stride + head // group * (capacity * d_k)
    decays += slot * decays_stride + head * (capacity * width)
    if scales is not None:
        scales += slot * scales_stride + head * capacity
    q += sequence * q_stride + head // group * d_k + row
    k += sequence * k_stride + head // group * d_k + row
    log_decay += sequence * log_decay_stride + head * width
    if beta is not None:
        beta += sequence * beta_stride + head
    if weight is not None:
        weight += sequence * weight_stride + head
    if rate is not None:
        rate += head
    rows += program * (results * d_k)
    old_shares += program * ((capacity + entries - 1) // entries * entries * results)
    new_shares += program * (results * taken)

    # all of them share one wait
    loaded = ()
    for t in tl.static_range(tokens):
        raw_query = tl.load(q + t * q_token)
        raw_key = tl.load(k + t * k_token)
        now = token_decay(log_decay + t * log_decay_token, rate, channel, floor)
        strength = 1.0 if beta is None else tl.load(beta + t * beta_token)
        key_weight = 1.0 if weight is None else tl.load(weight + t * weight_token)
        # the compiler knows no starred tuples
        loaded = loaded + ((raw_query, raw_key, now, strength, key_weight),)  # type: ignore[assignment]  # noqa: RUF005

    # the compiler would wait for each where it is used, but moves no load across a barrier
    tl.debug_barrier()

    known = ()
    since = channel * 0.0
    for t in tl.static_range(tokens):
        query = loaded[t][0].to(tl.float32)  # type: ignore[var-annotated]
        key = loaded[t][1].to(tl.float32)
        until = since if reads_before else since + loaded[t][2]
        since += loaded[t][2]
        if delta:
            query *= tl.rsqrt(tl.sum(query * query, axis=0) + eps) * (d_k**-0.5)
            key *= tl.rsqrt(tl.sum(key * key, axis=0) + eps)
        if weight is not None:
            key *= loaded[t][4].to(tl.float32)
        own = tl.where(token == t, 1.0, 0.0)
        read = query * tl.exp(until)
        read_share = own * 0.0
        held = key * tl.exp(since)
        held_share = own * 0.0
        for j in tl.static_range(t):
            kept = tl.exp(until - known[j][1])
            earlier = known[j][0]
            if per_key:
                earlier *= kept
                kept = 1.0
            seen = tl.sum(query * earlier, axis=0) * kept
            read_share += seen * known[j][2]
            if delta:
                # what is read and what is held count up to the same token here
                overlap = tl.sum(key * earlier, axis=0) * kept
                read += seen * known[j][3]
                held += overlap * known[j][3]
                held_share += overlap * known[j][2]
        if reads_before:
            seen = tl.sum(query * tl.load(bonus + head * d_k + row).to(tl.float32) * key, axis=0)
        else:
            seen = tl.sum(query * key, axis=0)
        if delta:
            strength = loaded[t][3].to(tl.float32)
            held *= -strength
            own = (own - held_share) * strength
            read += seen * held
            tl.store(rows + (padded + t) * d_k + row, held)
            tl.store(new_shares + (padded + t) * taken + token, own)
        read_share += seen * own
        if skip is not None:
            read_share += tl.where(token == t, tl.load(skip + head).to(tl.float32), 0.0)
        tl.store(rows + t * d_k + row, read)
        tl.store(new_shares + t * taken + token, read_share)
        known = known + ((key, since, own, held),)  # noqa: RUF005

    # rows are read back as a matrix
    tl.debug_barrier()
    result = tl.arange(0, results)
    first = 0
    while first < live:
        entry = first + tl.arange(0, entries)
        shares = shares_of(
            keys, decays, scales, rows, live, entry, result, result % padded < tokens, d_k, capacity, per_key, channels
        )
        tl.store(old_shares + entry[:, None] * results + result[None, :], shares)
        first += entries
