"""Tensors as the C functions want them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

# numbers a function touches from which on more than one thread pays
_WORTH_THREADS = 1 << 16


def rows(x: Tensor, inner: int) -> Tensor:
    """``x`` in fp32 with its last ``inner`` axes contiguous; the same tensor where it is so already."""
    x = x.float()
    if x.is_contiguous():
        return x
    expected = 1
    for axis in range(1, inner + 1):
        if x.shape[-axis] != 1 and x.stride(-axis) != expected:
            return x.contiguous()
        expected *= x.shape[-axis]
    return x


def room(*shape: int) -> Tensor:
    """Where a function will write, fp32 on the CPU: whatever torch makes by default, C writes four bytes a number."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def check_pool(pool: Tensor, slots: Tensor, batch: int, shape: tuple[int, ...]) -> None:
    """Check where a function will write, for C would write anywhere.

    Args:
        pool: fp32 ``[S, *shape]`` on the CPU, contiguous within a slot.
        slots: int64 ``[batch]``, contiguous.
        batch: sequences of the call.
        shape: of one slot.

    Raises:
        ValueError: pool or slots are not that.
        IndexError: a slot is not in the pool.
    """
    if pool.dtype is not torch.float32 or not pool.is_cpu:
        raise ValueError(f"the pool is {pool.dtype} on {pool.device}, want fp32 on the CPU")
    count, *found = pool.shape
    # strides first: they cost less to compare
    in_one_piece = pool.stride()[1:] == _strides(shape) or pool[:1].is_contiguous()
    if tuple(found) != shape or not in_one_piece:
        raise ValueError(f"slots of the pool are {found}, want {list(shape)} in one piece")
    if slots.dtype is not torch.int64 or slots.shape != (batch,) or not slots.is_contiguous():
        raise ValueError(f"slots are {slots.dtype} {list(slots.shape)}, want int64 [{batch}] in one piece")
    numbers = slots.tolist()
    if numbers and (min(numbers) < 0 or max(numbers) >= count):
        raise IndexError(f"slots {numbers} are not all among the {count} of the pool")


def check_shapes(tensors: Sequence[Tensor], wanted: Sequence[tuple[int, ...]]) -> None:
    """Check what a function will read, which nothing broadcasts.

    Raises:
        ValueError: a tensor is of another shape.
    """
    found = [tuple(x.shape) for x in tensors]
    if found != list(wanted):
        raise ValueError(f"tensors of the shapes {found}, want {[tuple(shape) for shape in wanted]}")


@cache
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def threads(numbers: int) -> int:
    """Threads for a call that touches so many numbers."""
    return torch.get_num_threads() if numbers >= _WORTH_THREADS else 1
