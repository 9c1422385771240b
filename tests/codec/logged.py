"""Pools whose slots have logs: random bases with random tokens behind them, and NaN where nothing is live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from holdover.arch.layout import RecurrentLayer, StateLayout
from holdover.ops.deferred.family import FAMILIES
from holdover.state import EXACT, KeyChain, SlotPool
from tests.codec.build import random_pool
from tests.ops.families import CASES, RWKV6

DRAWS = {case.name: case for case in (*CASES, RWKV6)}


def layer(index: int, family: str, heads: int = 2, key_heads: int = 2, width: int = 3) -> RecurrentLayer:
    unit = "channel" if FAMILIES[family].per_key else "head"
    return RecurrentLayer(index, family, heads, key_heads, 4, 6, unit, 5, width)  # type: ignore[arg-type]


def logged_pool(layout: StateLayout, fills: Sequence[int], merge_interval: int, device: str = "cpu") -> SlotPool:
    """A pool of twice as many slots as ``fills``: slot ``i + 1`` has ``fills[i]`` tokens in its log, the rest none.

    The same arguments give the same bits on every device.
    """
    pool = SlotPool(layout, 2 * len(fills), merge_interval=merge_interval)
    for slot in range(pool.num_slots + 1):
        pool.poison(slot)
    bases = random_pool(layout, slots=pool.num_slots)
    for slot, fill in enumerate(fills, start=1):
        for spec in layout.layers:
            pool.temporal(spec.index)[slot] = bases.temporal(spec.index)[slot]
            pool.conv(spec.index)[slot] = bases.conv(spec.index)[slot]
        pool.adopt(slot, KeyChain(b"n"), EXACT)
        if fill:
            feed(pool, slot, fill)
    assert [pool.pending(slot) for slot in range(1, len(fills) + 1)] == list(fills)
    return pool if device == "cpu" else _moved(pool, fills, device)


def feed(pool: SlotPool, slot: int, tokens: int) -> None:
    """Append random tokens to a slot's log, which has room for them."""
    log = pool.deferred
    assert log is not None
    index = log.index([slot])
    for spec in pool.layout.layers:
        seed = 1000 * spec.index + 10 * slot + tokens
        case = replace(DRAWS[spec.family], heads=spec.heads, key_heads=spec.key_heads, d_k=spec.d_k, d_v=spec.d_v)
        arguments = (x.to(pool.device) for x in case.arguments(1, tokens, seed))
        inputs = FAMILIES[spec.family].pack(*arguments)
        log.recurrence.verify(pool.temporal(spec.index), log.log(spec.index), log.cursor, index, inputs)
        x = torch.randn(1, tokens, spec.conv_channels, generator=torch.Generator().manual_seed(seed))
        x = x.to(pool.device, getattr(torch, pool.layout.conv_dtype))
        weight = torch.ones(spec.conv_channels, spec.conv_width, dtype=x.dtype, device=pool.device)
        log.convolution.verify(pool.conv_rows(spec.index), log.cursor, index, x, weight)
    log.recurrence.advance(log.cursor, index, log.capacity, drafts=tokens)
    log.advanced([slot], drafts=tokens)


def snapshot(pool: SlotPool) -> list[Tensor]:
    """A copy of every byte of a pool, its logs and cursors included."""
    return [x.contiguous().flatten().view(torch.uint8).clone() for x in _tensors(pool)]


def _moved(pool: SlotPool, fills: Sequence[int], device: str) -> SlotPool:
    assert pool.deferred is not None
    moved = SlotPool(pool.layout, pool.num_slots, device, merge_interval=pool.deferred.capacity + 1)
    assert moved.deferred is not None
    for slot, fill in enumerate(fills, start=1):
        moved.adopt(slot, pool.chain(slot), EXACT)
        if fill:
            moved.deferred.advanced([slot], drafts=fill)
    for theirs, ours in zip(_tensors(moved), _tensors(pool), strict=True):
        theirs.copy_(ours)
    return moved


def _tensors(pool: SlotPool) -> list[Tensor]:
    assert pool.deferred is not None
    layers = [spec.index for spec in pool.layout.layers]
    tensors = [view(i) for i in layers for view in (pool.temporal, pool.conv_rows)]
    return [*tensors, *pool.deferred.tensors, *pool.deferred.cursor]
