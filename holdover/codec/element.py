"""How a row of state is stored: in its own dtype, in bfloat16, or as INT8 with one scale a row (DASC App. E.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from holdover.retention import Element

# Eq. 8: the floor under a row's maximum, and the largest quantised value
SCALE_FLOOR = 1e-8
LARGEST = 127


def stored_dtype(element: Element, temporal: torch.dtype) -> torch.dtype:
    """Dtype of a stored element of a state whose dtype is ``temporal``."""
    return {"full": temporal, "bfloat16": torch.bfloat16, "int8": torch.int8}[element]


def quantise(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric INT8 of every row (Eq. 8): maximum, division and rounding (half to even) in float32.

    A row with an element that is not finite in float32 has no finite scale: its scale is NaN, so that `dequantise`
    gives a row of NaN and never plausible numbers.

    Args:
        rows: ``[n, d_v]``, any float dtype.

    Returns:
        int8 ``[n, d_v]``, and the scale of every row in the dtype of ``rows``, ``[n]``.
    """
    wide = rows.float()
    largest = wide.abs().amax(-1)
    # dividing by a number would multiply by its reciprocal on a GPU
    scale = largest.clamp_min(SCALE_FLOOR) / torch.full_like(largest, LARGEST)
    scale = torch.where(largest.isfinite(), scale, torch.nan)
    ratio = (wide / scale[:, None]).round_().clamp_(-LARGEST, LARGEST)
    return ratio.nan_to_num_(nan=0).to(torch.int8), scale.to(rows.dtype)


def dequantise(values: Tensor, scales: Tensor) -> Tensor:
    """Value times scale, in float32 or wider, rounded to the dtype of ``scales``.

    Args:
        values: int8 ``[n, d_v]``.
        scales: ``[n]``.

    Returns:
        ``[n, d_v]``.
    """
    wide = torch.promote_types(scales.dtype, torch.float32)
    return (values.to(wide) * scales.to(wide)[:, None]).to(scales.dtype)
