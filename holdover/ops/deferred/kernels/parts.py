"""What the kernels share: decays, live log entries, and folding one value tile of a head.

Pointers are those of one slot and head. ``channel`` is a block of key channels where the decay is per key, else 0;
``width`` is d_k or 1 accordingly.
"""

from __future__ import annotations

import triton.language as tl

from holdover.ops.deferred.kernels.jit import jit


@jit
def token_decay(log_decay: tl.tensor, rate: tl.tensor, channel: tl.tensor, floor: tl.constexpr) -> tl.tensor:
    """Floored log decay of a token."""
    decay = tl.load(log_decay + channel).to(tl.float32)
    if rate is not None:
        decay *= tl.load(rate).to(tl.float32)
    return tl.maximum(decay, floor, propagate_nan=tl.PropagateNan.ALL)


@jit
def cumulative(
    decays: tl.tensor, live: tl.tensor, channel: tl.tensor, width: tl.constexpr, capacity: tl.constexpr
) -> tl.tensor:
    """Log decay since the last fold: the newest live entry's."""
    decay = channel * 0.0
    if capacity > 0:
        # a mask as wide as what is loaded: not every release's interpreter widens one
        alive = live + channel * 0 > 0
        decay = tl.load(decays + (live - 1) * width + channel, mask=alive, other=0.0)
    return decay


@jit
def live_keys(
    keys: tl.tensor,
    decays: tl.tensor,
    scales: tl.tensor,
    live: tl.tensor,
    first: tl.tensor,
    channel: tl.tensor,
    until: tl.tensor,
    d_k: tl.constexpr,
    per_key: tl.constexpr,
    entries: tl.constexpr,
) -> tl.tensor:
    """Keys ``[entries, channels]`` from entry ``first`` on, with their factor and decayed up to ``until``."""
    entry = first + tl.arange(0, entries)
    alive = entry < live
    cells = entry[:, None] * d_k + channel[None, :]
    # what is not live may be anything: masked, it is never seen
    key = tl.load(keys + cells, mask=alive[:, None], other=0.0).to(tl.float32)
    if per_key:
        key *= tl.exp(until[None, :] - tl.load(decays + cells, mask=alive[:, None], other=0.0))
        if scales is not None:
            key *= tl.load(scales + entry, mask=alive, other=0.0)[:, None]
    else:
        factor = tl.exp(until - tl.load(decays + entry, mask=alive, other=0.0))
        if scales is not None:
            factor *= tl.load(scales + entry, mask=alive, other=0.0)
        key *= factor[:, None]
    return key


@jit
def live_values(
    values: tl.tensor,
    live: tl.tensor,
    first: tl.tensor,
    column: tl.tensor,
    d_v: tl.constexpr,
    entries: tl.constexpr,
) -> tl.tensor:
    """Values ``[entries, columns]`` from entry ``first`` on."""
    entry = first + tl.arange(0, entries)
    cells = entry[:, None] * d_v + column[None, :]
    return tl.load(values + cells, mask=(entry < live)[:, None], other=0.0).to(tl.float32)


@jit
def fold_tile(
    base: tl.tensor,
    target: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    decays: tl.tensor,
    scales: tl.tensor,
    live: tl.tensor,
    log_decay: tl.tensor,
    rate: tl.tensor,
    key: tl.tensor,
    key_scale: tl.tensor,
    update: tl.tensor,
    column: tl.tensor,
    d_k: tl.constexpr,
    d_v: tl.constexpr,
    capacity: tl.constexpr,
    unrolled: tl.constexpr,
    per_key: tl.constexpr,
    floor: tl.constexpr,
    rows: tl.constexpr,
    entries: tl.constexpr,
    stages: tl.constexpr,
) -> None:
    """Write the logical state into the columns ``column`` of ``target``, which may be the base itself (Eq. 6).

    The current token's decay, key and update come on top unless ``key`` is None. The base was read by this program a
    moment ago and comes from a cache; keeping it in registers instead would halve the programs in flight.
    """
    width: tl.constexpr = d_k if per_key else 1
    for top in tl.range(0, d_k, rows, num_stages=stages):
        row = top + tl.arange(0, rows)
        channel = row if per_key else 0
        until = cumulative(decays, live, channel, width, capacity)
        if key is not None:
            until += token_decay(log_decay, rate, channel, floor)
        kept = tl.exp(until)
        cells = base + row[:, None] * d_v + column[None, :]
        tile = tl.load(cells) * (kept[:, None] if per_key else kept)
        if unrolled:
            # a constant count lets the loads of all entries go out together; those that are not live are masked
            for first in tl.static_range(0, capacity, entries):
                old = live_keys(keys, decays, scales, live, first, row, until, d_k, per_key, entries)
                value = live_values(values, live, first, column, d_v, entries)
                tile += tl.sum(old[:, :, None] * value[:, None, :], axis=0)
        else:
            first = 0
            while first < live:
                old = live_keys(keys, decays, scales, live, first, row, until, d_k, per_key, entries)
                value = live_values(values, live, first, column, d_v, entries)
                tile += tl.sum(old[:, :, None] * value[:, None, :], axis=0)
                first += entries
        if key is not None:
            tile += (tl.load(key + row).to(tl.float32) * key_scale)[:, None] * update[None, :]
        tl.store(target + row[:, None] * d_v + column[None, :], tile)
