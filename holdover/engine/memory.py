"""From budgets in bytes to pools, before anything is allocated."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from holdover.arch.layout import ModelLayout
from holdover.errors import ConfigError
from holdover.state import SlotPool
from holdover.store import KVPool

# shares of the memory that is free after the weights are loaded, when no budget is given
_DEFAULT_SHARE = 0.2
_MOST_SLOTS = 512
_MOST_CONTEXTS = 64


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes of the two pools.

    Attributes:
        num_slots: state slots, shared by running sequences and checkpoints.
        num_rows: KV rows, shared alike.
        state_bytes: bytes that the slot pool allocates.
        kv_bytes: bytes that the KV pool allocates.
    """

    num_slots: int
    num_rows: int
    state_bytes: int
    kv_bytes: int


def plan_memory(
    layout: ModelLayout, *, state_memory: int | None, kv_memory: int | None, free_bytes: int, max_context: int
) -> MemoryPlan:
    """Fit both pools into their budgets.

    Args:
        layout: the model's layout, in the dtype it runs in.
        state_memory: bytes for recurrent state, live and cached; None for a share of ``free_bytes``.
        kv_memory: bytes for KV, live and cached; None likewise.
        free_bytes: memory that is free now.
        max_context: longest sequence that will be served.

    Raises:
        ConfigError: a budget is too small for one sequence.
    """
    slots = _largest(lambda n: SlotPool.bytes_for(layout.state, n), state_memory, free_bytes, _MOST_SLOTS)
    if slots < 1:
        need = SlotPool.bytes_for(layout.state, 1)
        raise ConfigError(
            f"state memory of {state_memory or int(free_bytes * _DEFAULT_SHARE)} bytes is too small: one running "
            f"sequence needs {need} bytes (its slot and the padding slot); raise --state-memory"
        )
    rows = _largest(lambda n: KVPool.bytes_for(layout.kv, n), kv_memory, free_bytes, _MOST_CONTEXTS * max_context)
    if rows < 2:
        need = KVPool.bytes_for(layout.kv, 2)
        raise ConfigError(f"KV memory is too small: even two tokens need {need} bytes; raise --kv-memory")
    return MemoryPlan(slots, rows, SlotPool.bytes_for(layout.state, slots), KVPool.bytes_for(layout.kv, rows))


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated on ``device`` now, without swapping."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def parse_bytes(text: str) -> int:
    """Bytes of a size such as ``512MiB``, ``2GB`` or ``1048576``.

    Raises:
        ConfigError: it is no size.
    """
    units = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
    cleaned = text.strip().lower().replace(" ", "")
    number = cleaned.rstrip("bigkm")
    try:
        size = int(float(number) * units[cleaned[len(number) :]])
    except (ValueError, KeyError, OverflowError):
        raise ConfigError(f"{text!r} is no size: write bytes, or a number with KB, MB, GB, KiB, MiB or GiB") from None
    if size <= 0:
        raise ConfigError(f"{text!r} must be more than zero bytes")
    return size


def _largest(bytes_for: Callable[[int], int], budget: int | None, free_bytes: int, most: int) -> int:
    base, each = bytes_for(0), bytes_for(1) - bytes_for(0)
    limit = int(free_bytes * _DEFAULT_SHARE) if budget is None else budget
    if each == 0:
        return most
    count = (limit - base) // each
    return int(min(count, most) if budget is None else count)
