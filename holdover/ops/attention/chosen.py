"""Attention of chosen tokens on a GPU, without a mask that is as large as queries times keys."""

from __future__ import annotations

import math
from functools import cache

import torch
import triton
from torch import Tensor

from holdover.ops.attention.kernels.chosen import chosen_kernel

INTERPRETED = not isinstance(chosen_kernel, triton.JITFunction)
DTYPES = (torch.bfloat16, torch.float16)
# shared memory that a program of heads up to so wide takes for its queries, keys and values
_HELD = {128: 132 << 10, 256: 194 << 10}


def serves(q: Tensor, value_width: int) -> bool:
    """Whether the kernel takes queries ``[T, Hq, D]`` and values of such a width, and fits their GPU."""
    if q.dtype not in DTYPES:
        return False
    width = max(q.shape[-1], value_width)
    index = q.device.index
    held = next((held for widest, held in _HELD.items() if width <= widest), None)
    return held is not None and held <= _shared_memory(torch.cuda.current_device() if index is None else index)


@cache
def _shared_memory(device: int) -> int:
    """Bytes of shared memory that a program may have on a GPU."""
    found: int = triton.runtime.driver.active.utils.get_device_properties(device)["max_shared_mem"]
    return found


def attend_chosen(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor, scale: float) -> Tensor:
    """Causal attention of some tokens of one sequence, wherever they stand. Accumulates in fp32.

    Args:
        q: ``[T, Hq, D]``; may be strided over all axes but the last, as the others.
        keys: ``[L, Hkv, D]`` of the same dtype.
        values: ``[L, Hkv, Dv]``, likewise.
        positions: of the queries among the keys, int64 ``[T]``.
        scale: factor on the scores.

    Returns:
        ``[T, Hq, Dv]`` in q's dtype.
    """
    (tokens, heads, width), (length, kv_heads, value_width) = q.shape, values.shape
    q, keys, values = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, keys, values))
    out = torch.empty(tokens, heads, value_width, dtype=q.dtype, device=q.device)
    columns, value_columns = (max(16, triton.next_power_of_2(x)) for x in (width, value_width))
    is_wide = max(columns, value_columns) > 128
    rows = 16 if INTERPRETED else 128
    chosen_kernel[triton.cdiv(tokens, rows), heads](
        q,
        keys,
        values,
        positions,
        out,
        scale * math.log2(math.e),
        tokens,
        length,
        *q.stride()[:2],
        *keys.stride()[:2],
        *values.stride()[:2],
        heads=heads,
        group=heads // kv_heads,
        width=width,
        columns=columns,
        value_width=value_width,
        value_columns=value_columns,
        rows=rows,
        block=64,
        stages=2 if is_wide else 3,
        interpreted=INTERPRETED,
        num_warps=8,
    )
    return out
