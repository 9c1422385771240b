"""How decode runs on a model and a device: with a log or without, and with which merge interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from holdover.arch.layout import StateLayout
from holdover.errors import ConfigError
from holdover.ops.deferred.log import LONGEST_INTERVAL
from holdover.ops.forms import has_triton
from holdover.state import DeferredLog

DecodeMode = Literal["auto", "dense", "deferred"]

# the best of those timed on an H200, for every family (benchmarks/notes/decode.md)
_INTERVAL = 8
# there a log beat the dense kernel at 16 sequences; where between 1 and 16 it begins to was not timed
_DENSE_BELOW = 12
# with drafts a log is folded as soon as they might not fit: a longer one is folded less often
_SPECULATIVE_INTERVAL = 16


@dataclass(frozen=True)
class DecodePlan:
    """What the state pool and the decoder are built from.

    Attributes:
        merge_interval: M of the slots' logs, 1 for the deferred ops without a log; None for the plain ops.
        dense_below: batches of fewer sequences run dense steps.
        drafts: tokens that a step verifies beside the next one; 0 without speculation.
        on_device: whether batches are prepared on the device, and captured in graphs if they can be.
        use_graphs: whether to capture.
    """

    merge_interval: int | None = None
    dense_below: int = 0
    drafts: int = 0
    on_device: bool = False
    use_graphs: bool = False


def plan_decode(
    layout: StateLayout,
    device: torch.device,
    mode: DecodeMode = "auto",
    *,
    merge_interval: int | None = None,
    drafts: int = 0,
    use_graphs: bool = True,
) -> DecodePlan:
    """Decide how decode runs.

    ``auto`` keeps a log on a GPU, for batches at which it is the faster way; on a CPU the dense step is faster.
    Speculation needs a log anywhere.

    Args:
        layout: the model's recurrent state.
        device: where it lives.
        mode: what the user asked for.
        merge_interval: M if chosen by hand.
        drafts: tokens that a step verifies beside the next one.
        use_graphs: False to do without CUDA graphs.

    Raises:
        ConfigError: what was asked for cannot be had together, or not on this state.
    """
    # the decoder on a device runs Triton's kernels
    is_gpu = has_triton(device.type)
    if mode == "dense" and (drafts or merge_interval):
        wanted = "speculation takes rejected drafts back out of" if drafts else "a merge interval is for"
        raise ConfigError(f"{wanted} the log of deferred decode: choose --decode deferred or auto")
    wants_log = mode == "deferred" or drafts > 0 or merge_interval is not None
    interval = merge_interval or _interval(drafts)
    if wants_log:
        _check(layout, interval, drafts)
    if wants_log or (mode == "auto" and is_gpu and _can_defer(layout, interval)):
        return DecodePlan(interval, 0 if wants_log else _DENSE_BELOW, drafts, is_gpu, is_gpu and use_graphs)
    if is_gpu and _can_defer(layout, 1):
        return DecodePlan(1, on_device=True, use_graphs=use_graphs)
    return DecodePlan()


def _interval(drafts: int) -> int:
    return min(max(_SPECULATIVE_INTERVAL, drafts + 2), LONGEST_INTERVAL) if drafts else _INTERVAL


def _check(layout: StateLayout, interval: int, drafts: int) -> None:
    """Refuse a log that the state cannot have, or that drafts and the token before them do not fit."""
    try:
        DeferredLog.bytes_for(layout, 1, 1)
    except ConfigError as error:
        instead = "--decode dense and --speculate off" if drafts else "--decode dense"
        raise ConfigError(f"{error}: choose {instead}") from None
    DeferredLog.bytes_for(layout, 1, interval)
    if drafts and (least := drafts + 2) > interval:
        longer = f", or choose a merge interval of at least {least}" if least <= LONGEST_INTERVAL else ""
        raise ConfigError(
            f"{drafts} drafts and the token before them do not fit a log of merge interval {interval}: draft at most "
            f"{max(interval - 2, 0)}{longer}"
        )


def _can_defer(layout: StateLayout, merge_interval: int) -> bool:
    try:
        DeferredLog.bytes_for(layout, 1, merge_interval)
    except ConfigError:
        return False
    return True
