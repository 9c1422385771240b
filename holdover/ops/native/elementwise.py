"""Norms and gates in C."""

from __future__ import annotations

from enum import IntEnum

from torch import Tensor

from holdover.ops.native.arguments import check_shapes, room, rows, threads
from holdover.ops.native.library import Norm, Product, call


class Activation(IntEnum):
    """What the C source calls activations."""

    NONE = 0
    SILU = 1
    SIGMOID = 2


def norm(
    x: Tensor, weight: Tensor, eps: float, gate: Tensor | None = None, activation: Activation = Activation.NONE
) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight``, times the activated ``gate``, in fp32.

    Args:
        x: ``[..., d]``.
        weight: ``[d]``.
        eps: added to the mean square.
        gate: of x's shape, or None.
        activation: of the gate.

    Returns:
        fp32, contiguous, of x's shape.

    Raises:
        ValueError: weight or gate are of another shape.
    """
    values, weight = _by_row(x), rows(weight, 1)
    gates = values if gate is None else _by_row(gate)
    check_shapes([weight, x if gate is None else gate], [x.shape[-1:], x.shape])
    out = room(*x.shape)
    call(
        Norm(
            *values.shape,
            threads(x.numel()),
            activation,
            values.data_ptr(),
            gates.data_ptr(),
            values.stride(0),
            gates.stride(0),
            weight.data_ptr(),
            eps,
            out.data_ptr(),
        )
    )
    return out


def silu_product(gate: Tensor, x: Tensor) -> Tensor:
    """``silu(gate) * x`` of tensors ``[..., d]``, in fp32, contiguous.

    Raises:
        ValueError: their shapes differ.
    """
    check_shapes([gate], [x.shape])
    gates, values = (rows(y, 1).reshape(-1, y.shape[-1]) for y in (gate, x))
    out = room(*x.shape)
    call(
        Product(
            *values.shape,
            threads(x.numel()),
            gates.data_ptr(),
            values.data_ptr(),
            gates.stride(0),
            values.stride(0),
            out.data_ptr(),
        )
    )
    return out


def _by_row(x: Tensor) -> Tensor:
    """``x [..., d]`` as ``[rows, heads, d]``, heads and ``d`` contiguous; without a copy where its strides allow it."""
    if x.dim() < 3:
        return rows(x, 1).reshape(-1, 1, x.shape[-1])
    return rows(x, 2).flatten(0, -3)
