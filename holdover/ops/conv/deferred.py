"""Causal depthwise convolution whose past inputs keep pace with a deferred log, so that tokens can be taken back.

A pool is ``[S, W-1+capacity, C]``: rows 0 to W-2 of a slot are the inputs before its last fold, and row W-1+j is the
input of the token at log entry j. So the W-1 newest inputs are the rows from ``length`` on, and the log's cursor serves
as it is: what takes tokens back from the log takes them back here.

No function here moves the cursor. Rows with slot 0 are padding: their output is zero and nothing of slot 0 is read or
written.
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdover.ops.conv.torch import check, finish
from holdover.ops.deferred.log import Cursor


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
        cursor: of the same slots.
        slots: ``[B]`` int64, distinct but for zeros.
        x: ``[B, C]``.
        weight: ``[C, W]``; the last column weighs the current token.
        bias: ``[C]`` or None.
        activation: ``silu`` or None.

    Returns:
        ``[B, C]`` in x's dtype.

    Raises:
        ValueError: the activation is unknown.
    """
    check(activation)
    past, real, slots = weight.shape[1] - 1, slots != 0, slots[slots != 0]
    live = cursor.length[slots].long()
    full = live >= cursor.limit[slots]
    inputs = _inputs(pool, live, slots, x[real].unsqueeze(1), past)
    out = torch.zeros_like(x)
    out[real] = _convolve(inputs, weight, bias, activation).squeeze(1).to(x.dtype)
    kept = inputs.to(pool.dtype)
    pool[slots[~full], live[~full] + past] = kept[~full, past]
    pool[slots[full], :past] = kept[full, 1:]
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
        x: ``[B, T, C]``.
        weight: as in `step`.
        bias: as in `step`.
        activation: as in `step`.

    Returns:
        ``[B, T, C]`` in x's dtype.

    Raises:
        ValueError: the activation is unknown.
    """
    check(activation)
    past, real, slots = weight.shape[1] - 1, slots != 0, slots[slots != 0]
    live = cursor.length[slots].long()
    inputs = _inputs(pool, live, slots, x[real], past)
    out = torch.zeros_like(x)
    out[real] = _convolve(inputs, weight, bias, activation).to(x.dtype)
    # where nothing restarts, the past inputs go back to where they are
    start = torch.where(live + x.shape[1] > pool.shape[1] - past, 0, live)
    pool[slots[:, None], _rows(start, inputs.shape[1])] = inputs.to(pool.dtype)
    return out


def settle(pool: Tensor, cursor: Cursor, slots: Tensor) -> None:
    """Make rows 0 to W-2 of ``slots`` their newest inputs; their lengths have yet to become 0."""
    materialise(pool, cursor, slots, slots)


def materialise(pool: Tensor, cursor: Cursor, sources: Tensor, targets: Tensor) -> None:
    """Make rows 0 to W-2 of each target the newest inputs of its source, which stays as it is.

    Every row from the source's ``length`` on moves to the front, so W need not be known: what lies behind the newest
    inputs is not live, neither there nor here.

    Args:
        pool: as in `step`.
        cursor: as in `step`.
        sources: ``[B]`` int64; may repeat.
        targets: ``[B]`` int64, distinct but for zeros, and each no source but its own; a pair with a zero is skipped.
    """
    real = (sources != 0) & (targets != 0)
    sources, targets = sources[real], targets[real]
    rows = _rows(cursor.length[sources].long(), pool.shape[1])
    pool[targets] = pool[sources[:, None], rows.clamp_max(pool.shape[1] - 1)]


def _rows(first: Tensor, count: int) -> Tensor:
    """``count`` rows from ``first [B]`` on: ``[B, count]``."""
    return first[:, None] + torch.arange(count, device=first.device)


def _inputs(pool: Tensor, live: Tensor, slots: Tensor, x: Tensor, past: int) -> Tensor:
    """The newest inputs and ``x [B, T, C]`` behind them: fp32 ``[B, W-1+T, C]``."""
    return torch.cat([pool[slots[:, None], _rows(live, past)].float(), x.float()], dim=1)


def _convolve(inputs: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """Outputs ``[B, T, C]`` of ``inputs [B, W-1+T, C]``, in fp32."""
    windows = inputs.unfold(1, weight.shape[1], 1)  # [B, T, C, W]
    return finish((windows * weight.float()).sum(-1), bias, activation)
