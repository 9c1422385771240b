"""`ops.conv.torch` on a GPU: the same functions with the same contracts, each in two launches for any length."""

from __future__ import annotations

import triton
from torch import Tensor, empty

from holdover.errors import ConfigError
from holdover.ops.conv.kernels import keep_kernel, sequence_kernel
from holdover.ops.conv.torch import check

# tokens and channels of a program: neighbours share all inputs but W-1, which the nearest cache holds
ROWS, BLOCK = 16, 128


def step(
    pool: Tensor, slots: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """One token ``[B, C]``; see `ops.conv.torch.step`."""
    return sequence(pool, slots, x.unsqueeze(1), weight, bias, activation).squeeze(1)


def sequence(
    pool: Tensor, slots: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """T tokens; see `ops.conv.torch.sequence`.

    Raises:
        ConfigError: the channels of the pool are not contiguous.
        ValueError: the activation is unknown.
    """
    check(activation)
    if pool.stride(2) != 1:
        raise ConfigError(f"the channels of the conv pool are {pool.stride(2)} elements apart, want contiguous ones")
    x = x if x.stride(-1) == 1 else x.contiguous()
    batch, tokens, channels = x.shape
    width, blocks = weight.shape[1], triton.cdiv(channels, BLOCK)
    strides = (*pool.stride()[:2], *x.stride()[:2])
    out = empty(x.shape, dtype=x.dtype, device=x.device)
    sequence_kernel[triton.cdiv(tokens, ROWS), blocks, batch](
        pool,
        slots,
        x,
        weight,
        bias,
        out,
        tokens,
        channels,
        *strides,
        *weight.stride(),
        width=width,
        silu=activation == "silu",
        rows=ROWS,
        block=BLOCK,
    )
    keep_kernel[batch, blocks](
        pool,
        slots,
        x,
        tokens,
        channels,
        *strides,
        width=width,
        padded=triton.next_power_of_2(width),
        block=BLOCK,
        num_warps=1,
    )
    return out
