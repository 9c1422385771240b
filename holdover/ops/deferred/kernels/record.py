"""What the tiles of a head share of the drafts' entries: keys, decays and factors."""

from __future__ import annotations

import triton.language as tl

from holdover.ops.deferred.kernels.parts import cumulative, token_decay
from holdover.ops.jit import jit


@jit
def record_kernel(
    keys: tl.tensor,
    decays: tl.tensor,
    scales: tl.tensor,
    length: tl.tensor,
    slots: tl.tensor,
    k: tl.tensor,
    log_decay: tl.tensor,
    weight: tl.tensor,
    rate: tl.tensor,
    keys_stride: tl.tensor,
    decays_stride: tl.tensor,
    scales_stride: tl.tensor,
    k_stride: tl.tensor,
    log_decay_stride: tl.tensor,
    weight_stride: tl.tensor,
    k_token: tl.tensor,
    log_decay_token: tl.tensor,
    weight_token: tl.tensor,
    tokens: tl.constexpr,
    heads: tl.constexpr,
    key_heads: tl.constexpr,
    d_k: tl.constexpr,
    capacity: tl.constexpr,
    delta: tl.constexpr,
    per_key: tl.constexpr,
    eps: tl.constexpr,
    floor: tl.constexpr,
) -> None:
    """Program ``(sequence, head)``, after `verify_kernel`, whose tiles fold the entries that these replace."""
    group: tl.constexpr = heads // key_heads
    width: tl.constexpr = d_k if per_key else 1
    program = tl.program_id(0)
    head = program % heads
    sequence = (program // heads).to(tl.int64)
    slot = tl.load(slots + sequence).to(tl.int64)
    if slot == 0:
        return
    row = tl.arange(0, d_k)
    channel = row if per_key else 0
    live = tl.load(length + slot)
    live = tl.where(live + tokens > capacity, 0, live)
    keys += slot * keys_stride + head // group * (capacity * d_k) + row
    decays += slot * decays_stride + head * (capacity * width)
    k += sequence * k_stride + head // group * d_k + row
    log_decay += sequence * log_decay_stride + head * width
    if rate is not None:
        rate += head
    decay = cumulative(decays, live, channel, width, capacity)
    for t in tl.static_range(tokens):
        entry = live + t
        key = tl.load(k + t * k_token)
        if head % group == 0:
            tl.store(keys + entry * d_k, key)
        decay += token_decay(log_decay + t * log_decay_token, rate, channel, floor)
        tl.store(decays + entry * width + channel, decay)
        if scales is not None:
            if delta:
                scale = tl.rsqrt(tl.sum(key.to(tl.float32) * key.to(tl.float32), axis=0) + eps)
            else:
                scale = tl.load(weight + sequence * weight_stride + t * weight_token + head).to(tl.float32)
            tl.store(scales + slot * scales_stride + head * capacity + entry, scale)
