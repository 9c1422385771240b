"""The causal convolution in C: signatures and results are those of `holdover.ops.conv.torch`."""

from __future__ import annotations

from torch import Tensor

from holdover.ops.conv.torch import check
from holdover.ops.native.arguments import check_pool, check_shapes, room, rows, threads
from holdover.ops.native.library import Convolution, call

# taps that the C source has room for
WIDEST = 16


def step(
    pool: Tensor, slots: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """One token ``x [B, C]``; see `holdover.ops.conv.torch.step`."""
    return sequence(pool, slots, x.unsqueeze(1), weight, bias, activation).squeeze(1)


def sequence(
    pool: Tensor, slots: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """T tokens ``x [B, T, C]``; see `holdover.ops.conv.torch.sequence`.

    Raises:
        ValueError: the weight has more than `WIDEST` taps, or a tensor is not of the shape that the others ask for;
            nothing was written.
        IndexError: a slot is not in the pool; likewise.
    """
    check(activation)
    batch, tokens, channels = x.shape
    inputs, taps = rows(x, 1), rows(weight.mT, 2)
    offset = None if bias is None else rows(bias, 1)
    width = taps.shape[0]
    if width > WIDEST:
        raise ValueError(f"{width} taps, want at most {WIDEST}")
    check_shapes([weight], [(channels, width)])
    if offset is not None:
        check_shapes([offset], [(channels,)])
    check_pool(pool, slots, batch, (width - 1, channels))
    out = room(*x.shape)
    call(
        Convolution(
            pool.data_ptr(),
            slots.data_ptr(),
            pool.stride(0),
            batch,
            tokens,
            width,
            channels,
            threads(batch * tokens * channels),
            activation == "silu",
            inputs.data_ptr(),
            inputs.stride(0),
            inputs.stride(1),
            taps.data_ptr(),
            None if offset is None else offset.data_ptr(),
            out.data_ptr(),
        )
    )
    return out.to(x.dtype)
