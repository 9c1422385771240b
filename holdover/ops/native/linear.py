"""Matrix products of few rows in C: MKL's are made for many, and cost twice a pass over the weights."""

from __future__ import annotations

from torch import Tensor

from holdover.ops.native.arguments import check_shapes, room, rows, threads
from holdover.ops.native.library import Linear, Mlp, Product, call

# with more rows MKL's products are the faster ones
MOST_ROWS = 16


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x @ weight.T`` in fp32; a row's result does not depend on the others'.

    Args:
        x: ``[..., k]``.
        weight: ``[n, k]``.

    Returns:
        fp32 ``[..., n]``, contiguous.

    Raises:
        ValueError: the weight is of another width.
    """
    inputs, weight = rows(x, 1).reshape(-1, x.shape[-1]), rows(weight, 2)
    outputs = weight.shape[0]
    check_shapes([weight], [(outputs, x.shape[-1])])
    out = room(*x.shape[:-1], outputs)
    call(_product(inputs, weight, out.data_ptr()))
    return out


def gated_mlp(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """``(silu(x @ gate.T) * (x @ value.T)) @ down.T`` in fp32.

    Args:
        x: ``[..., k]``.
        up: gate over value ``[2 d, k]``.
        down: ``[n, d]``.

    Returns:
        fp32 ``[..., n]``, contiguous.

    Raises:
        ValueError: a weight is of another shape.
    """
    inputs, up, down = rows(x, 1).reshape(-1, x.shape[-1]), rows(up, 2), rows(down, 2)
    count, outputs, width = inputs.shape[0], *down.shape
    check_shapes([up], [(2 * width, x.shape[-1])])
    projected, gated = room(count, 2 * width), room(count, width)
    out = room(*x.shape[:-1], outputs)
    start = projected.data_ptr()
    product = Product(count, width, 1, start, start + 4 * width, 2 * width, 2 * width, gated.data_ptr())
    call(Mlp(_product(inputs, up, start), product, _product(gated, down, out.data_ptr())))
    return out


def _product(x: Tensor, weight: Tensor, out: int) -> Linear:
    """``x [m, k]`` and ``weight [n, k]``, checked, into ``[m, n]`` at an address."""
    (count, width), numbers = x.shape, weight.numel()
    return Linear(count, width, weight.shape[0], threads(numbers), x.data_ptr(), x.stride(0), weight.data_ptr(), out)
