"""The convolution of `deferred` on a GPU: one launch for slots in any phase, so that one CUDA graph serves them all.

The same functions with the same contracts. Nothing here allocates but the output, waits for the device or reads back
from it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from holdover.errors import ConfigError
from holdover.ops.conv.kernels import move_kernel, step_kernel, verify_kernel
from holdover.ops.conv.torch import check
from holdover.ops.deferred.log import Cursor

# channels of a program: one warp that reads 16 bytes a thread of bf16
BLOCK = 256
# rows that are moved at once
MOVED = 4


def step(
    pool: Tensor,
    cursor: Cursor,
    slots: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """One token of every slot: append it, or keep but the newest inputs where the limit is reached.

    Args:
        pool: ``[S, W-1+capacity, C]``; may be strided over S.
        cursor: of the same slots; the ops' ``advance`` moves it after the last layer.
        slots: ``[B]`` int64, distinct but for zeros.
        x: ``[B, C]``; may be strided over B.
        weight: ``[C, W]``, in any strides; the last column weighs the current token.
        bias: ``[C]`` or None.
        activation: ``silu`` or None.

    Returns:
        ``[B, C]`` in x's dtype.

    Raises:
        ConfigError: the pool has another layout than the kernels read.
        ValueError: the activation is unknown.
    """
    x, shared = _prepared(pool, x, weight, activation)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    step_kernel[_grid(pool, slots)](
        pool,
        *cursor,
        slots,
        x,
        weight,
        bias,
        out,
        pool.shape[2],
        *pool.stride()[:2],
        x.stride(0),
        *weight.stride(),
        **shared,
    )
    return out


def verify(
    pool: Tensor,
    cursor: Cursor,
    slots: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """T tokens of every slot, all of them appended; a slot without room for them keeps but its newest inputs first.

    Args:
        pool: as in `step`; has room for T tokens.
        cursor: as in `step`.
        slots: as in `step`.
        x: ``[B, T, C]``; may be strided over B and T.
        weight: as in `step`.
        bias: as in `step`.
        activation: as in `step`.

    Returns:
        ``[B, T, C]`` in x's dtype.

    Raises:
        ConfigError: the pool has no room for T tokens, or another layout than the kernels read.
        ValueError: the activation is unknown.
    """
    tokens, capacity = x.shape[1], pool.shape[1] - weight.shape[1] + 1
    if tokens > capacity:
        raise ConfigError(f"{tokens} drafts do not fit a log of {capacity}: raise the merge interval")
    x, shared = _prepared(pool, x, weight, activation)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    verify_kernel[_grid(pool, slots)](
        pool,
        cursor.length,
        slots,
        x,
        weight,
        bias,
        out,
        pool.shape[2],
        *pool.stride()[:2],
        *x.stride()[:2],
        *weight.stride(),
        tokens=tokens,
        capacity=capacity,
        **shared,
    )
    return out


def settle(pool: Tensor, cursor: Cursor, slots: Tensor) -> None:
    """Make rows 0 to W-2 of ``slots`` their newest inputs; their lengths have yet to become 0."""
    materialise(pool, cursor, slots, slots)


def materialise(pool: Tensor, cursor: Cursor, sources: Tensor, targets: Tensor) -> None:
    """Make rows 0 to W-2 of each target the newest inputs of its source, which stays as it is.

    Args:
        pool: as in `step`.
        cursor: as in `step`.
        sources: ``[B]`` int64; may repeat.
        targets: ``[B]`` int64, distinct but for zeros, and each no source but its own; a pair with a zero is skipped.
    """
    move_kernel[_grid(pool, sources)](
        pool,
        cursor.length,
        sources,
        targets,
        pool.shape[2],
        *pool.stride()[:2],
        rows=pool.shape[1],
        padded=MOVED,
        block=BLOCK,
        num_warps=1,
    )


def _prepared(pool: Tensor, x: Tensor, weight: Tensor, activation: str | None) -> tuple[Tensor, dict[str, Any]]:
    """``x`` with channels side by side, and what `step_kernel` and `verify_kernel` are compiled for."""
    check(activation)
    if pool.stride(2) != 1:
        raise ConfigError(f"the channels of the conv pool are {pool.stride(2)} elements apart, want contiguous ones")
    width = weight.shape[1]
    options = {"padded": triton.next_power_of_2(width), "silu": activation == "silu", "block": BLOCK, "num_warps": 1}
    return x if x.stride(-1) == 1 else x.contiguous(), {"width": width, **options}


def _grid(pool: Tensor, slots: Tensor) -> tuple[int, int]:
    return len(slots), triton.cdiv(pool.shape[2], BLOCK)
