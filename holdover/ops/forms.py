"""Which form of an operation runs on a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from holdover.ops.conv import torch as conv
from holdover.ops.native import convolution, library, recurrence
from holdover.ops.recurrence import fla


@cache
def has_triton(device_type: str) -> bool:
    """Whether Triton's kernels run on such a device."""
    return device_type == "cuda" and find_spec("triton") is not None


def runs_native(x: torch.Tensor) -> bool:
    """Whether the compiled C functions work on a tensor."""
    return x.is_cpu and x.dtype is torch.float32 and library.available()


def step_form(op: Any, pool: torch.Tensor) -> Callable[..., torch.Tensor]:
    """``step`` of a recurrence for one token a sequence.

    Args:
        op: a module such as `ops.recurrence.gdn.torch`.
        pool: the states.
    """
    form: Callable[..., torch.Tensor] = _native(op, pool).step
    return form


def sequence_form(op: Any, pool: torch.Tensor) -> Callable[..., torch.Tensor]:
    """``sequence`` of a recurrence for several tokens: through fla's kernels on a GPU where they serve its family.

    Args:
        op: a module such as `ops.recurrence.gdn.torch`.
        pool: the states.
    """
    form: Callable[..., torch.Tensor] = _native(op, pool).sequence
    return form if pool.device.type != "cuda" else fla.sequence(_family(op)) or form


def dense_conv_form(pool: torch.Tensor) -> Any:
    """What works on a pool of histories: `ops.native.convolution`, `ops.conv.dense_triton` or `ops.conv.torch`."""
    if has_triton(pool.device.type):
        return import_module("holdover.ops.conv.dense_triton")
    return convolution if runs_native(pool) and pool.shape[1] < convolution.WIDEST else conv


def deferred_form(device: torch.device) -> Any:
    """`ops.deferred.triton` where it runs, else `ops.deferred.torch`: the same functions."""
    return import_module(f"holdover.ops.deferred.{'triton' if has_triton(device.type) else 'torch'}")


def conv_form(device: torch.device) -> Any:
    """`ops.conv.triton` where it runs, else `ops.conv.deferred`: the same functions."""
    return import_module(f"holdover.ops.conv.{'triton' if has_triton(device.type) else 'deferred'}")


def seated_attention() -> Any:
    """`ops.attention.triton`, whose sequences' rows stand in a table on the device."""
    return import_module("holdover.ops.attention.triton")


def chosen_attention() -> Any:
    """`ops.attention.chosen`, for queries at any positions of one sequence."""
    return import_module("holdover.ops.attention.chosen")


def _native(op: Any, pool: torch.Tensor) -> Any:
    """The same functions in C where there are any and they work on the pool, else the ones given."""
    return recurrence.FORMS.get(_family(op), op) if runs_native(pool) else op


def _family(op: Any) -> str:
    """Name of the folder that a recurrence's module is in."""
    name: str = op.__name__
    return name.removesuffix(".torch").rpartition(".")[2]
