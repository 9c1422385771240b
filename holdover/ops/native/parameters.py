"""What a recurrent layer computes beside its convolution and its recurrence, as parameters for C."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from holdover.ops.native.elementwise import Activation


@dataclass(frozen=True)
class Gating:
    """From raw numbers ``[B, H]`` to what the recurrence takes: ``rate * clamp(softplus(decay + bias))`` and
    ``scale * sigmoid(strength)``.

    Attributes:
        bias: fp32 ``[H]``.
        rate: fp32 ``[H]``; None for 1.
        low: of the clamp.
        high: of the clamp.
        scale: of the write strength.
    """

    bias: Tensor
    rate: Tensor | None = None
    low: float = 0.0
    high: float = math.inf
    scale: float = 1.0


@dataclass(frozen=True)
class GatedNorm:
    """RMS norm of every head's readout under a gate.

    Attributes:
        weight: fp32 ``[d_v]``.
        eps: added to the mean square.
        activation: of the gate.
    """

    weight: Tensor
    eps: float
    activation: Activation


def check_parameter(x: Tensor | None, *shape: int) -> None:
    """Check what a function will read as it lies.

    Raises:
        ValueError: it is not fp32 of the shape, in one piece on the CPU.
    """
    if x is not None and (x.shape != shape or x.dtype is not torch.float32 or not x.is_cpu or not x.is_contiguous()):
        raise ValueError(
            f"a parameter is {x.dtype} {list(x.shape)} on {x.device}, want fp32 {list(shape)} in one piece"
        )
