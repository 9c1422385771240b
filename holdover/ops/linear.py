"""Matrix products with a model's weights."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from holdover.ops.forms import runs_native
from holdover.ops.native import linear as native
from holdover.ops.norm import silu_product


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x [..., k] @ weight.T + bias`` with ``weight [n, k]`` and ``bias [n]`` of x's dtype; ``[..., n]``."""
    if not _is_few(x):
        return F.linear(x, weight, bias)
    out = native.linear(x, weight)
    return out if bias is None else out.add_(bias)


def gated_mlp(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """``(silu(gate) * value) @ down.T`` with gate and value side by side in ``x @ up.T``.

    Args:
        x: ``[..., k]``.
        up: ``[2 d, k]`` of x's dtype.
        down: ``[n, d]`` likewise.

    Returns:
        ``[..., n]`` in x's dtype.
    """
    if _is_few(x):
        return native.gated_mlp(x, up, down)
    gate, value = F.linear(x, up).chunk(2, dim=-1)
    return F.linear(silu_product(gate, value), down)


def _is_few(x: Tensor) -> bool:
    return x.numel() <= native.MOST_ROWS * x.shape[-1] and runs_native(x)
