"""What the kernels share: decays, live log entries, and folding one value tile of a head.

Pointers are those of one slot and head. ``channel`` is a block of key channels where the decay is per key, else 0;
``width`` is d_k or 1 accordingly.
"""

from __future__ import annotations

import triton.language as tl

from holdover.ops.jit import jit


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
def load_entries(
    keys: tl.tensor,
    values: tl.tensor,
    decays: tl.tensor,
    scales: tl.tensor,
    live: tl.tensor,
    first: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    d_k: tl.constexpr,
    d_v: tl.constexpr,
    per_key: tl.constexpr,
    entries: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Keys ``[entries, d_k]``, values ``[entries, columns]``, decays and factors from entry ``first`` on, as stored."""
    entry = first + tl.arange(0, entries)
    # what is not live may be anything: masked, it is never seen
    alive = entry < live
    cells = entry[:, None] * d_k + row[None, :]
    key = tl.load(keys + cells, mask=alive[:, None], other=0.0)
    if per_key:
        decay = tl.load(decays + cells, mask=alive[:, None], other=0.0)
    else:
        decay = tl.load(decays + entry, mask=alive, other=0.0)
    value = tl.load(values + entry[:, None] * d_v + column[None, :], mask=alive[:, None], other=0.0)
    scale = 1.0
    if scales is not None:
        scale = tl.load(scales + entry, mask=alive, other=0.0)
    return key, value, decay, scale


@jit
def decayed(
    key: tl.tensor, decay: tl.tensor, scale: tl.tensor, until: tl.tensor, per_key: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Keys of entries and what is left to multiply their products by, so that both count up to ``until``."""
    kept = tl.exp(until - decay)
    key = key.to(tl.float32)
    if per_key:
        key *= kept
    else:
        scale *= kept
    return key, scale


@jit
def weighted(x: tl.tensor, key: tl.tensor, factor: tl.tensor, value: tl.tensor) -> tl.tensor:
    """Values summed by how well ``x [d_k]`` fits their keys: ``[columns]``."""
    weight = tl.sum(key * x[None, :], axis=1) * factor
    return tl.sum(weight[:, None] * value, axis=0)


@jit
def folded(
    tile: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    decays: tl.tensor,
    scales: tl.tensor,
    live: tl.tensor,
    until: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    d_k: tl.constexpr,
    d_v: tl.constexpr,
    per_key: tl.constexpr,
    entries: tl.constexpr,
) -> tl.tensor:
    """The base's ``tile [rows, columns]`` decayed up to ``until``, with the log's live entries (Eq. 6).

    The loads of ``entries`` of them share one wait.
    """
    width: tl.constexpr = d_k if per_key else 1
    channel = row if per_key else 0
    tile *= tl.exp(until)[:, None] if per_key else tl.exp(until)
    first = 0
    while first < live:
        loaded = ()
        for i in tl.static_range(entries):
            entry = first + i
            # masks as wide as what is loaded: not every release's interpreter widens one
            key = tl.load(keys + entry * d_k + row, mask=entry + row * 0 < live, other=0.0)
            value = tl.load(values + entry * d_v + column, mask=entry + column * 0 < live, other=0.0)
            decay = tl.load(decays + entry * width + channel, mask=entry + channel * 0 < live, other=0.0)
            scale = 1.0
            if scales is not None:
                scale = tl.load(scales + entry, mask=entry < live, other=0.0)
            # the compiler knows no starred tuples
            loaded = loaded + ((key, value, decay, scale),)  # type: ignore[assignment]  # noqa: RUF005
        for i in tl.static_range(entries):
            factored, factor = decayed(loaded[i][0], loaded[i][2], loaded[i][3], until, per_key)
            tile += factored[:, None] * (loaded[i][1].to(tl.float32) * factor)[None, :]
        first += entries
    return tile
