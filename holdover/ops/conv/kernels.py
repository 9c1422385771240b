"""Depthwise convolution of one block of channels of one sequence, with its past inputs in a pool of rows."""

from __future__ import annotations

import triton.language as tl

from holdover.ops.jit import jit


@jit
def load_window(
    newest: tl.tensor, row_stride: tl.tensor, x: tl.tensor, x_token: tl.tensor, first: tl.tensor,
    width: tl.constexpr, row: tl.tensor, channel: tl.tensor, channels: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Inputs ``[W padded, block]`` that end with token ``first``: the pool's newest W-1 rows, and tokens of ``x``."""
    past: tl.constexpr = width - 1
    at = first + row
    needed = (row < width)[:, None] & (channel < channels)[None, :]
    old = needed & (at < past)[:, None]
    new = needed & (at >= past)[:, None]
    known = tl.load(newest + at[:, None] * row_stride + channel[None, :], mask=old, other=0.0).to(tl.float32)
    given = tl.load(x + (at - past)[:, None] * x_token + channel[None, :], mask=new, other=0.0).to(tl.float32)
    return tl.where(old, known, given)


@jit
def load_inputs(
    history: tl.tensor, row_stride: tl.tensor, x: tl.tensor, x_token: tl.tensor, at: tl.tensor,
    past: tl.constexpr, tokens: tl.tensor, channel: tl.tensor, channels: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Inputs ``[n, block]`` in x's dtype, at places counted from the history's oldest; 0 beyond the last token."""
    inside = (channel < channels)[None, :]
    old = (at < past)[:, None] & inside
    new = ((at >= past) & (at < past + tokens))[:, None] & inside
    known = tl.load(history + at[:, None] * row_stride + channel[None, :], mask=old, other=0.0)
    given = tl.load(x + (at - past)[:, None] * x_token + channel[None, :], mask=new, other=0.0)
    return tl.where(old, known.to(given.dtype), given)


@jit
def load_taps(
    weight: tl.tensor, weight_channel: tl.tensor, weight_tap: tl.tensor,
    width: tl.constexpr, row: tl.tensor, channel: tl.tensor, channels: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Weights ``[W padded, block]``; padding is 0."""
    needed = (row < width)[:, None] & (channel < channels)[None, :]
    cells = channel[None, :] * weight_channel + row[:, None] * weight_tap
    return tl.load(weight + cells, mask=needed, other=0.0).to(tl.float32)


@jit
def finish(y: tl.tensor, bias: tl.tensor, silu: tl.constexpr, channel: tl.tensor, channels: tl.tensor) -> tl.tensor:
    """Bias and activation."""
    if bias is not None:
        y += tl.load(bias + channel, mask=channel < channels, other=0.0).to(tl.float32)
    if silu:
        y = y / (1.0 + tl.exp(-y))
    return y


@jit
def sequence_kernel(
    pool: tl.tensor,
    slots: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    tokens: tl.tensor,
    channels: tl.tensor,
    slot_stride: tl.tensor,
    row_stride: tl.tensor,
    x_sequence: tl.tensor,
    x_token: tl.tensor,
    weight_channel: tl.tensor,
    weight_tap: tl.tensor,
    width: tl.constexpr,
    silu: tl.constexpr,
    rows: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Program ``(rows, block, sequence)``: outputs of some tokens; the history is read and not written."""
    past: tl.constexpr = width - 1
    sequence = tl.program_id(2).to(tl.int64)
    token = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    channel = tl.program_id(1) * block + tl.arange(0, block)
    inside = (channel < channels)[None, :]
    pool += tl.load(slots + sequence).to(tl.int64) * slot_stride
    y = tl.zeros([rows, block], tl.float32)
    for tap in tl.static_range(width):
        inputs = load_inputs(
            pool, row_stride, x + sequence * x_sequence, x_token, token + tap, past, tokens, channel, channels
        )
        factor = tl.load(weight + channel * weight_channel + tap * weight_tap, mask=channel < channels, other=0.0)
        y += inputs.to(tl.float32) * factor.to(tl.float32)[None, :]
    y = finish(y, bias, silu, channel, channels)
    cells = (sequence * tokens + token)[:, None] * channels + channel[None, :]
    tl.store(out + cells, y, mask=(token < tokens)[:, None] & inside)


@jit
def keep_kernel(
    pool: tl.tensor,
    slots: tl.tensor,
    x: tl.tensor,
    tokens: tl.tensor,
    channels: tl.tensor,
    slot_stride: tl.tensor,
    row_stride: tl.tensor,
    x_sequence: tl.tensor,
    x_token: tl.tensor,
    width: tl.constexpr,
    padded: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Program ``(sequence, block)``: the history becomes the last W-1 inputs."""
    past: tl.constexpr = width - 1
    sequence = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, padded).to(tl.int64)
    channel = tl.program_id(1) * block + tl.arange(0, block)
    pool += tl.load(slots + sequence).to(tl.int64) * slot_stride
    held = load_inputs(
        pool, row_stride, x + sequence * x_sequence, x_token, tokens + row, past, tokens, channel, channels
    )
    # rows of the history move: all are read before one is written
    tl.debug_barrier()
    cells = pool + row[:, None] * row_stride + channel[None, :]
    tl.store(cells, held, mask=(row < past)[:, None] & (channel < channels)[None, :])


@jit
def step_kernel(
    pool: tl.tensor,
    length: tl.tensor,
    limit: tl.tensor,
    slots: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    channels: tl.tensor,
    slot_stride: tl.tensor,
    row_stride: tl.tensor,
    x_stride: tl.tensor,
    weight_channel: tl.tensor,
    weight_tap: tl.tensor,
    width: tl.constexpr,
    padded: tl.constexpr,
    silu: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Program ``(sequence, block)``: one token, appended or folded."""
    sequence = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, padded)
    channel = tl.program_id(1) * block + tl.arange(0, block)
    out += sequence * channels + channel
    slot = tl.load(slots + sequence).to(tl.int64)
    if slot == 0:
        tl.store(out, tl.zeros([block], tl.float32), mask=channel < channels)
        return

    live = tl.load(length + slot)
    folds_at = tl.load(limit + slot)
    pool += slot * slot_stride
    newest = pool + live * row_stride
    inputs = load_window(newest, row_stride, x + sequence * x_stride, 0, 0, width, row, channel, channels)
    taps = load_taps(weight, weight_channel, weight_tap, width, row, channel, channels)
    tl.store(out, finish(tl.sum(inputs * taps, axis=0), bias, silu, channel, channels), mask=channel < channels)

    inside = (channel < channels)[None, :]
    if live < folds_at:
        cells = newest + row[:, None] * row_stride + channel[None, :]
        tl.store(cells, inputs, mask=(row == width - 1)[:, None] & inside)
    else:
        # rows move by less than their number: all are read before one is written
        tl.debug_barrier()
        cells = pool + (row - 1)[:, None] * row_stride + channel[None, :]
        tl.store(cells, inputs, mask=((row > 0) & (row < width))[:, None] & inside)


@jit
def verify_kernel(
    pool: tl.tensor,
    length: tl.tensor,
    slots: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    channels: tl.tensor,
    slot_stride: tl.tensor,
    row_stride: tl.tensor,
    x_stride: tl.tensor,
    x_token: tl.tensor,
    weight_channel: tl.tensor,
    weight_tap: tl.tensor,
    tokens: tl.constexpr,
    capacity: tl.constexpr,
    width: tl.constexpr,
    padded: tl.constexpr,
    silu: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Program ``(sequence, block)``: T tokens, all appended, behind the newest inputs alone where they have no room."""
    past: tl.constexpr = width - 1
    sequence = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, padded)
    channel = tl.program_id(1) * block + tl.arange(0, block)
    inside = channel < channels
    out += sequence * tokens * channels + channel
    slot = tl.load(slots + sequence).to(tl.int64)
    if slot == 0:
        for t in range(tokens):
            tl.store(out + t * channels, tl.zeros([block], tl.float32), mask=inside)
        return

    live = tl.load(length + slot)
    pool += slot * slot_stride
    newest = pool + live * row_stride
    x += sequence * x_stride
    taps = load_taps(weight, weight_channel, weight_tap, width, row, channel, channels)
    for t in range(tokens):
        inputs = load_window(newest, row_stride, x, x_token, t, width, row, channel, channels)
        y = finish(tl.sum(inputs * taps, axis=0), bias, silu, channel, channels)
        tl.store(out + t * channels, y, mask=inside)

    moved = (row < past)[:, None] & inside[None, :]
    rows = row[:, None] * row_stride + channel[None, :]
    held = tl.load(newest + rows, mask=moved, other=0.0)
    # what is written from here on may be what another thread had yet to read
    tl.debug_barrier()
    if live + tokens > capacity:
        tl.store(pool + rows, held, mask=moved)
        newest = pool
    for t in range(tokens):
        now = tl.load(x + t * x_token + channel, mask=inside, other=0.0)
        tl.store(newest + (past + t) * row_stride + channel, now, mask=inside)


@jit
def move_kernel(
    pool: tl.tensor,
    length: tl.tensor,
    sources: tl.tensor,
    targets: tl.tensor,
    channels: tl.tensor,
    slot_stride: tl.tensor,
    row_stride: tl.tensor,
    rows: tl.constexpr,
    padded: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Program ``(pair, block)``: the source's rows from ``length`` on become the target's first rows."""
    pair = tl.program_id(0)
    source = tl.load(sources + pair).to(tl.int64)
    target = tl.load(targets + pair).to(tl.int64)
    if source == 0 or target == 0:
        return
    live = tl.load(length + source)
    channel = tl.program_id(1) * block + tl.arange(0, block)
    first = 0
    while first < rows - live:
        # source and target may be one slot, but rows only move to the front: later ones are still there
        row = first + tl.arange(0, padded)
        moved = (row < rows - live)[:, None] & (channel < channels)[None, :]
        cells = pool + row[:, None] * row_stride + channel[None, :]
        held = tl.load(cells + source * slot_stride + live * row_stride, mask=moved)
        tl.debug_barrier()
        tl.store(cells + target * slot_stride, held, mask=moved)
        first += padded
