"""Deferred recurrence on a GPU: one launch for slots in any phase, so that one CUDA graph serves them all.

The same functions as in `torch`, with the same contracts. A program owns one value tile of one head of one slot; it
reads its slot's cursor from memory and appends or folds accordingly. With a merge interval of 1 the step is the
dense recurrence in place. Nothing here allocates but outputs and what the tiles of a verification share, waits for the
device or reads back from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from holdover.errors import ConfigError
from holdover.ops.deferred.family import PER_TOKEN, Inputs
from holdover.ops.deferred.kernels.combine import combine_kernel
from holdover.ops.deferred.kernels.cursor import advance_kernel, rollback_kernel
from holdover.ops.deferred.kernels.fold import fold_kernel
from holdover.ops.deferred.kernels.record import record_kernel
from holdover.ops.deferred.kernels.step import step_kernel
from holdover.ops.deferred.kernels.verify import verify_kernel
from holdover.ops.deferred.log import FLOOR, Cursor, Log
from holdover.ops.deferred.tiling import COMBINED, INNER, DraftTiling, Tiling, choose, choose_fold, choose_verify
from holdover.ops.recurrence.delta import EPS

CURSOR_BLOCK = 128


def step(
    base: Tensor,
    log: Log,
    cursor: Cursor,
    slots: Tensor,
    inputs: Inputs,
    tiling: Tiling | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """One token of every slot: append it to the log, or fold it and the log into the base where the limit is reached.

    Args:
        base: ``[S, H, d_k, d_v]`` fp32 or bf16; may be strided over S.
        log: of the same slots.
        cursor: of the same slots; `advance` moves it after the last layer.
        slots: ``[B]`` int64, distinct but for zeros; a row with slot 0 is padding and its output is zero.
        inputs: of one token, ``[B, ...]``; may be strided over B.
        tiling: block sizes, chosen by the layout and B if None.
        out: what to write and return, contiguous; made if None.

    Returns:
        ``[B, H, d_v]`` in q's dtype.

    Raises:
        ConfigError: a tensor has another layout than the kernels read.
    """
    layout, batch = log.layout, len(slots)
    tiling = tiling or choose(layout, batch)
    inputs = _checked(base, log, inputs, leading=1)
    if out is None:
        out = torch.empty(inputs.v.shape, dtype=inputs.q.dtype, device=inputs.q.device)
    elif out.shape != inputs.v.shape or out.dtype != inputs.q.dtype or not out.is_contiguous():
        raise ConfigError(
            f"out is {tuple(out.shape)} {out.dtype}, want contiguous {tuple(inputs.v.shape)} {inputs.q.dtype}"
        )
    step_kernel[(batch * layout.heads * (layout.d_v // tiling.columns),)](
        *_state(base, log),
        *cursor,
        slots,
        *inputs,
        out,
        *_slot_strides(base, log),
        *_strides(inputs, 0),
        **_shape(log),
        **_rule(log),
        columns=tiling.columns,
        entries=tiling.entries,
        fold_entries=tiling.fold_entries,
        num_warps=tiling.warps,
    )
    return out


def verify(
    base: Tensor, log: Log, cursor: Cursor, slots: Tensor, inputs: Inputs, tiling: DraftTiling | None = None
) -> Tensor:
    """T tokens of every slot, all of them kept in the log so that the last ones can be taken back.

    A log without room for them is folded first, whatever its limit. `rollback` takes tokens back after `advance`.
    What a fold into a bf16 base rounds shows in later calls only.

    Args:
        base: as in `step`.
        log: of the same slots; holds at least T entries.
        cursor: as in `step`.
        slots: as in `step`.
        inputs: of T tokens, ``[B, T, ...]``; may be strided over B and T.
        tiling: block sizes, chosen by the layout and B if None.

    Returns:
        ``[B, T, H, d_v]`` in q's dtype.

    Raises:
        ConfigError: the log is shorter than T, or a tensor has another layout than the kernels read.
    """
    layout, batch, tokens = log.layout, len(slots), inputs.v.shape[1]
    if tokens > layout.capacity:
        raise ConfigError(f"{tokens} drafts do not fit a log of {layout.capacity}: raise the merge interval")
    tiling = tiling or choose_verify(layout, batch)
    inputs = _checked(base, log, inputs, leading=2)
    out = torch.empty(inputs.v.shape, dtype=inputs.q.dtype, device=inputs.q.device)
    shared = _combine(log, cursor, slots, inputs)
    verify_kernel[(batch * layout.heads * (layout.d_v // tiling.columns),)](
        *_state(base, log),
        cursor.length,
        slots,
        inputs.v,
        *shared,
        out,
        *_slot_strides(base, log),
        inputs.v.stride(0),
        inputs.v.stride(1),
        **_shape(log),
        **_drafts(log, tokens),
        delta=layout.family.delta,
        per_key=layout.family.per_key,
        channels=tiling.channels,
        columns=tiling.columns,
        stages=tiling.stages,
        num_warps=tiling.warps,
    )
    _record(log, cursor, slots, inputs)
    return out


def advance(cursor: Cursor, slots: Tensor, capacity: int, *, drafts: int | None = None, dense: bool = False) -> None:
    """Move the cursor at ``slots`` past a `step`, or past a `verify` of ``drafts`` tokens, as `next_cursor` does."""
    grid = (triton.cdiv(len(slots), CURSOR_BLOCK),)
    advance_kernel[grid](*cursor, slots, len(slots), capacity, drafts, dense, CURSOR_BLOCK, num_warps=1)


def rollback(cursor: Cursor, slots: Tensor, counts: Tensor) -> None:
    """Take the newest ``counts [B]`` int32 entries of each slot's log back; slot 0 stays."""
    grid = (triton.cdiv(len(slots), CURSOR_BLOCK),)
    rollback_kernel[grid](cursor.length, slots, counts, len(slots), CURSOR_BLOCK, num_warps=1)


def fold(base: Tensor, log: Log, cursor: Cursor, slots: Tensor, room: int | None = None) -> None:
    """Write the logical state of ``slots`` into their bases; their lengths have yet to become 0.

    With ``room``, only of those slots whose log cannot take so many entries more.
    """
    _fold(base, log, cursor, slots, None, log.layout.merge_interval if room is None else room)


def materialise(base: Tensor, log: Log, cursor: Cursor, sources: Tensor, targets: Tensor) -> None:
    """Write the logical state of each source into its target's base; nothing else changes.

    Args:
        base: as in `step`.
        log: of the same slots.
        cursor: as in `step`.
        sources: ``[B]`` int64; may repeat.
        targets: ``[B]`` int64, distinct but for zeros and none of them a source; a pair with a zero is skipped.
    """
    _fold(base, log, cursor, sources, targets, log.layout.merge_interval)


def _fold(base: Tensor, log: Log, cursor: Cursor, slots: Tensor, targets: Tensor | None, room: int) -> None:
    layout, batch = log.layout, len(slots)
    tiling = choose_fold(layout, batch)
    fold_kernel[(batch * layout.heads * (layout.d_v // tiling.columns),)](
        *_state(base, log),
        cursor.length,
        slots,
        targets,
        *_slot_strides(base, log),
        room=room,
        **_shape(log),
        per_key=layout.family.per_key,
        columns=tiling.columns,
        entries=tiling.fold_entries,
        num_warps=tiling.warps,
    )


def _combine(log: Log, cursor: Cursor, slots: Tensor, inputs: Inputs) -> tuple[Tensor, ...]:
    """Rows, old and new shares of every head, as `combine_kernel` writes them; of padding they stay as they were."""
    layout, programs, drafts = log.layout, len(slots) * log.layout.heads, _drafts(log, inputs.v.shape[1])
    replayed = triton.cdiv(layout.capacity, INNER) * INNER
    empty = partial(torch.empty, dtype=torch.float32, device=inputs.q.device)
    shared = tuple(empty(programs, drafts["results"], width) for width in (layout.d_k, replayed, drafts["taken"]))
    logged = (log.keys, log.decays, log.scales)
    read = (inputs.q, inputs.k, inputs.log_decay, inputs.beta, inputs.weight)
    combine_kernel[(programs,)](
        *logged,
        cursor.length,
        slots,
        *read,
        inputs.rate,
        inputs.skip,
        inputs.bonus,
        *shared,
        *_stride_of(logged, 0),
        *_stride_of(read, 0),
        *_stride_of(read, 1),
        heads=layout.heads,
        key_heads=layout.key_heads,
        d_k=layout.d_k,
        capacity=layout.capacity,
        **_rule(log),
        **drafts,
        channels=min(COMBINED, max(INNER, layout.d_k)),
        num_warps=1,
    )
    return shared


def _drafts(log: Log, tokens: int) -> dict[str, int]:
    """Counts that both kernels of a verification go by."""
    padded = triton.next_power_of_2(tokens)
    results = 2 * padded if log.layout.family.delta else padded
    return {"tokens": tokens, "padded": padded, "results": results, "entries": INNER, "taken": max(INNER, padded)}


def _record(log: Log, cursor: Cursor, slots: Tensor, inputs: Inputs) -> None:
    """Write the drafts' keys, decays and factors."""
    layout, family = log.layout, log.layout.family
    written = (log.keys, log.decays, log.scales)
    read = (inputs.k, inputs.log_decay, inputs.weight)
    record_kernel[(len(slots) * layout.heads,)](
        *written,
        cursor.length,
        slots,
        *read,
        inputs.rate,
        *_stride_of(written, 0),
        *_stride_of(read, 0),
        *_stride_of(read, 1),
        tokens=inputs.v.shape[1],
        heads=layout.heads,
        key_heads=layout.key_heads,
        d_k=layout.d_k,
        capacity=layout.capacity,
        delta=family.delta,
        per_key=family.per_key,
        eps=EPS,
        floor=FLOOR,
        num_warps=1,
    )


def _checked(base: Tensor, log: Log, inputs: Inputs, leading: int) -> Inputs:
    """``inputs`` as the kernels read them: contiguous behind the ``leading`` axes."""
    x = log.layout
    state = (x.heads, x.d_k, x.d_v)
    if base.shape[1:] != state or base.dtype != x.base_dtype or not base[0].is_contiguous():
        raise ConfigError(
            f"base is {base.dtype} {tuple(base.shape)}, want {x.base_dtype} and, within a slot, contiguous {state}"
        )
    axes = [leading] * PER_TOKEN + [0] * (len(inputs) - PER_TOKEN)
    strided = {
        name: x
        for (name, x), axis in zip(inputs._asdict().items(), axes, strict=True)
        if x is not None and not _packed(x, axis)
    }
    return inputs._replace(**{name: x.contiguous() for name, x in strided.items()})


def _packed(x: Tensor, leading: int) -> bool:
    expected = 1
    for size, stride in zip(reversed(x.shape[leading:]), reversed(x.stride()[leading:]), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _state(base: Tensor, log: Log) -> tuple[Tensor | None, ...]:
    return base, log.keys, log.values, log.decays, log.scales


def _slot_strides(base: Tensor, log: Log) -> list[int]:
    return _stride_of(_state(base, log), 0)


def _strides(inputs: Inputs, axis: int) -> list[int]:
    return _stride_of(inputs[:PER_TOKEN], axis)


def _stride_of(tensors: Iterable[Tensor | None], axis: int) -> list[int]:
    return [0 if x is None else x.stride(axis) for x in tensors]


def _shape(log: Log) -> dict[str, Any]:
    x = log.layout
    return {"heads": x.heads, "key_heads": x.key_heads, "d_k": x.d_k, "d_v": x.d_v, "capacity": x.capacity}


def _rule(log: Log) -> dict[str, Any]:
    x = log.layout.family
    return {"delta": x.delta, "per_key": x.per_key, "reads_before": x.reads_before, "eps": EPS, "floor": FLOOR}
