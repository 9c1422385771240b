"""T tokens of one value tile of one head, all appended to the log: drafts, of which the caller may take some back."""

from __future__ import annotations

import triton.language as tl

from holdover.ops.deferred.kernels.parts import cumulative
from holdover.ops.deferred.kernels.products import product
from holdover.ops.jit import jit


@jit
def load_values(
    values: tl.tensor, entry: tl.tensor, live: tl.tensor, column: tl.tensor, d_v: tl.constexpr
) -> tl.tensor:
    """Values of entries ``[columns, entries]``, as stored."""
    # what is not live may be anything: masked, it is never seen
    return tl.load(values + entry[None, :] * d_v + column[:, None], mask=(entry < live)[None, :], other=0.0)


@jit
def load_shares(
    shares: tl.tensor, entry: tl.tensor, live: tl.tensor, result: tl.tensor, results: tl.constexpr
) -> tl.tensor:
    """What results take of entries' values: ``[entries, results]``."""
    return tl.load(shares + entry[:, None] * results + result[None, :], mask=(entry < live)[:, None], other=0.0)


@jit
def fold_values(
    values: tl.tensor, decays: tl.tensor, scales: tl.tensor, entry: tl.tensor, live: tl.tensor, column: tl.tensor,
    d_v: tl.constexpr, capacity: tl.constexpr, per_key: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Values of entries with their keys' factors and, where it is one number, what is left of each."""
    value = load_values(values, entry, live, column, d_v).to(tl.float32)
    if scales is not None:
        value *= tl.load(scales + entry, mask=entry < live, other=0.0)[None, :]
    if not per_key:
        until = cumulative(decays, live, 0, 1, capacity)
        value *= tl.exp(until - tl.load(decays + entry, mask=entry < live, other=0.0))[None, :]
    return value


@jit
def fold_keys(
    keys: tl.tensor, decays: tl.tensor, until: tl.tensor, row: tl.tensor, entry: tl.tensor, live: tl.tensor,
    d_k: tl.constexpr, per_key: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Some channels of entries' keys ``[entries, channels]``, and what is left of each where that is their own."""
    cells = entry[:, None] * d_k + row[None, :]
    alive = (entry < live)[:, None] & (row < d_k)[None, :]
    key = tl.load(keys + cells, mask=alive, other=0.0)
    if per_key:
        key = key.to(tl.float32) * tl.exp(until[None, :] - tl.load(decays + cells, mask=alive, other=0.0))
    return key


@jit
def read_base(
    total: tl.tensor, base: tl.tensor, rows: tl.tensor, keys: tl.tensor, values: tl.tensor, decays: tl.tensor,
    scales: tl.tensor, live: tl.tensor, column: tl.tensor, result: tl.tensor, real: tl.tensor, d_k: tl.constexpr,
    d_v: tl.constexpr, capacity: tl.constexpr, per_key: tl.constexpr, entries: tl.constexpr, channels: tl.constexpr,
    stages: tl.constexpr, folds: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """``total [columns, results]`` and what the rows read in the base, which becomes the logical state if it folds."""
    width: tl.constexpr = d_k if per_key else 1
    recent = ()
    if folds:
        for first in tl.static_range(0, capacity, entries):
            entry = first + tl.arange(0, entries)
            value = fold_values(values, decays, scales, entry, live, column, d_v, capacity, per_key)
            # the compiler knows no starred tuples
            recent = recent + (value,)  # type: ignore[assignment]  # noqa: RUF005
    for top in tl.range(0, d_k, channels, num_stages=stages):
        row = top + tl.arange(0, channels)
        cells = base + row[None, :] * d_v + column[:, None]
        until = cumulative(decays, live, row % d_k if per_key else 0, width, capacity)
        kept = tl.exp(until)
        if channels > d_k:
            state = tl.load(cells, mask=(row < d_k)[None, :], other=0.0)
            read = tl.load(rows + result[None, :] * d_k + row[:, None], mask=real & (row < d_k)[:, None], other=0.0)
        else:
            state = tl.load(cells)
            read = tl.load(rows + result[None, :] * d_k + row[:, None], mask=real, other=0.0)
        read *= kept[:, None] if per_key else kept
        total = product(state, read, total)
        if folds:
            state = state.to(tl.float32) * (kept[None, :] if per_key else kept)
            for i in tl.static_range((capacity + entries - 1) // entries):
                entry = i * entries + tl.arange(0, entries)
                state = product(recent[i], fold_keys(keys, decays, until, row, entry, live, d_k, per_key), state)
            if channels > d_k:
                tl.store(cells, state, mask=(row < d_k)[None, :])
            else:
                tl.store(cells, state)
    return total


@jit
def verify_kernel(
    base: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    decays: tl.tensor,
    scales: tl.tensor,
    length: tl.tensor,
    slots: tl.tensor,
    v: tl.tensor,
    rows: tl.tensor,
    old_shares: tl.tensor,
    new_shares: tl.tensor,
    out: tl.tensor,
    base_stride: tl.tensor,
    keys_stride: tl.tensor,
    values_stride: tl.tensor,
    decays_stride: tl.tensor,
    scales_stride: tl.tensor,
    v_stride: tl.tensor,
    v_token: tl.tensor,
    tokens: tl.constexpr,
    padded: tl.constexpr,
    results: tl.constexpr,
    heads: tl.constexpr,
    key_heads: tl.constexpr,
    d_k: tl.constexpr,
    d_v: tl.constexpr,
    capacity: tl.constexpr,
    delta: tl.constexpr,
    per_key: tl.constexpr,
    entries: tl.constexpr,
    taken: tl.constexpr,
    channels: tl.constexpr,
    columns: tl.constexpr,
    stages: tl.constexpr,
) -> None:
    """Program ``(sequence, head, tile)``, after `combine_kernel`, whose rows and shares say what to add up.

    A log without room is folded on the way: the state is read once, as of before. Of the drafts' entries only the
    values are written, which are the tile's own: other tiles may yet have to fold what the rest of them replaces, so
    that is `record_kernel`'s.
    """
    tiles: tl.constexpr = d_v // columns
    group: tl.constexpr = heads // key_heads
    width: tl.constexpr = d_k if per_key else 1
    program = tl.program_id(0)
    head = program // tiles % heads
    sequence = (program // (tiles * heads)).to(tl.int64)
    column = program % tiles * columns + tl.arange(0, columns)
    result = tl.arange(0, results)
    # results are columns here, and values rows: that fills the tensor cores' shapes best
    outputs = (result < tokens)[None, :] & (column >= 0)[:, None]
    out += (sequence * tokens * heads + head) * d_v + result[None, :] * (heads * d_v) + column[:, None]
    slot = tl.load(slots + sequence).to(tl.int64)
    if slot == 0:
        tl.store(out, tl.zeros([columns, results], tl.float32), mask=outputs)
        return

    live = tl.load(length + slot)
    base += slot * base_stride + head * (d_k * d_v)
    keys += slot * keys_stride + head // group * (capacity * d_k)
    values += slot * values_stride + head * (capacity * d_v)
    decays += slot * decays_stride + head * (capacity * width)
    if scales is not None:
        scales += slot * scales_stride + head * capacity
    rows += (sequence * heads + head) * (results * d_k)
    old_shares += (sequence * heads + head) * ((capacity + entries - 1) // entries * entries * results)
    new_shares += (sequence * heads + head) * (results * taken)
    real = (result % padded < tokens)[None, :]

    # all of these share one wait, and need no registers any more when the base is read
    token = tl.arange(0, taken)
    drafted = (token < tokens)[None, :]
    drafts = v + sequence * v_stride + head * d_v + token[None, :] * v_token + column[:, None]
    value = tl.load(drafts, mask=drafted, other=0.0)
    share = tl.load(new_shares + result[None, :] * taken + token[:, None], mask=real, other=0.0)
    entry = tl.arange(0, entries)
    old = load_values(values, entry, live, column, d_v)
    old_share = load_shares(old_shares, entry, live, result, results)
    total = product(value, share, tl.zeros([columns, results], tl.float32))
    total = product(old, old_share, total)
    first = entries
    while first < live:
        entry = first + tl.arange(0, entries)
        old = load_values(values, entry, live, column, d_v)
        total = product(old, load_shares(old_shares, entry, live, result, results), total)
        first += entries

    folds = live + tokens > capacity
    if folds:
        total = read_base(
            total, base, rows, keys, values, decays, scales, live, column, result, real, d_k, d_v, capacity, per_key,
            entries, channels, stages, folds=True,
        )  # fmt: skip
    else:
        total = read_base(
            total, base, rows, keys, values, decays, scales, live, column, result, real, d_k, d_v, capacity, per_key,
            entries, channels, stages, folds=False,
        )  # fmt: skip
    tl.store(out, total, mask=outputs)

    if folds:
        live *= 0
        # no thread replaces a value before all have read it
        tl.debug_barrier()
    if delta:
        update = (result >= padded)[None, :] & real
        tl.store(values + (live + result - padded)[None, :] * d_v + column[:, None], total, mask=update)
    else:
        tl.store(values + (live + token)[None, :] * d_v + column[:, None], value, mask=drafted)
