"""Which form of an operation runs on a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from holdover.ops.recurrence import fla


@cache
def has_triton(device_type: str) -> bool:
    """Whether Triton's kernels run on such a device."""
    return device_type == "cuda" and find_spec("triton") is not None


def sequence_form(op: Any, device: torch.device) -> Callable[..., torch.Tensor]:
    """``sequence`` of a recurrence for several tokens: through fla's kernels on a GPU where they serve its family.

    Args:
        op: a module such as `ops.recurrence.gdn.torch`.
        device: where the states are.
    """
    own: Callable[..., torch.Tensor] = op.sequence
    return own if device.type != "cuda" else fla.sequence(op.__name__.split(".")[-2]) or own


def deferred_form(device: torch.device) -> Any:
    """`ops.deferred.triton` where it runs, else `ops.deferred.torch`: the same functions."""
    return import_module(f"holdover.ops.deferred.{'triton' if has_triton(device.type) else 'torch'}")


def conv_form(device: torch.device) -> Any:
    """`ops.conv.triton` where it runs, else `ops.conv.deferred`: the same functions."""
    return import_module(f"holdover.ops.conv.{'triton' if has_triton(device.type) else 'deferred'}")


def seated_attention() -> Any:
    """`ops.attention.triton`, whose sequences' rows stand in a table on the device."""
    return import_module("holdover.ops.attention.triton")
