"""From budgets in bytes to pools, before anything is allocated."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from holdover.arch.layout import ModelLayout
from holdover.codec import Codec, usable_slots
from holdover.errors import ConfigError
from holdover.state import SlotPool
from holdover.store import KVPool, PackedPool

# shares of the memory that is free after the weights are loaded, when no budget is given
_DEFAULT_SHARE = 0.2
_MOST_SLOTS = 512
_MOST_CONTEXTS = 64


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes of the pools.

    Attributes:
        num_slots: native state slots, shared by running sequences, dense checkpoints and the scratch state.
        num_packed: packed slots, for compressed checkpoints.
        num_rows: KV rows, shared by running sequences and the cache.
        state_bytes: bytes that the native slots and their logs take.
        packed_bytes: bytes that the packed slots take.
        staging_bytes: bytes of the packed records that are on their way to a shelf, and of what packing takes.
        kv_bytes: bytes that the KV pool and the decoder's buffers take.
    """

    num_slots: int
    num_packed: int
    num_rows: int
    state_bytes: int
    packed_bytes: int
    staging_bytes: int
    kv_bytes: int

    def with_slots(self, layout: ModelLayout, needs: StateNeeds, native: int, packed: int) -> MemoryPlan:
        """The plan with so many native and packed slots."""
        return replace(
            self,
            num_slots=native,
            num_packed=packed,
            state_bytes=needs.slot_bytes(layout, native),
            packed_bytes=needs.packed_bytes(packed),
        )


@dataclass(frozen=True)
class StateNeeds:
    """What the state budget has to hold beside checkpoints.

    Attributes:
        codec: how checkpoints are packed; None for dense checkpoints only.
        running: sequences that run together.
        scratch: slots of the engine itself.
        staging: packed records in flight to a shelf.
        working: bytes that packing and unpacking take beside slots and records.
        native_slots: native slots, if chosen by hand.
        packed_slots: packed slots, if chosen by hand.
        merge_interval: of the native slots' logs; None for slots without logs.
        decode_bytes: bytes of the decoder's buffers, among them the table of the KV rows of what runs; taken from the
            KV budget.
    """

    codec: Codec | None = None
    running: int = 1
    scratch: int = 0
    staging: int = 0
    working: int = 0
    native_slots: int | None = None
    packed_slots: int | None = None
    merge_interval: int | None = None
    decode_bytes: int = 0

    def slot_bytes(self, layout: ModelLayout, num_slots: int) -> int:
        """Bytes of so many native slots, with everything that belongs to them."""
        return SlotPool.bytes_for(layout.state, num_slots, self.merge_interval)

    def packed_bytes(self, num_packed: int) -> int:
        """Bytes of so many packed slots."""
        return PackedPool.bytes_for(self.codec, num_packed) if self.codec is not None and num_packed else 0


def plan_memory(
    layout: ModelLayout,
    *,
    state_budget: int | None,
    kv_budget: int | None,
    free_bytes: int,
    max_context: int,
    needs: StateNeeds | None = None,
) -> MemoryPlan:
    """Fit all pools into the two budgets.

    The state budget is split so: first the records in flight to a shelf and what packing takes; then native slots,
    which without a codec take the rest. With one, native slots are as many as may run together, the scratch slot and a
    quarter more to move in, but at most half of what is left (and never fewer than one sequence needs); packed slots
    take the rest.

    Args:
        layout: the model's layout, in the dtype it runs in.
        state_budget: bytes for recurrent state, live and cached; None for a share of ``free_bytes``.
        kv_budget: bytes for KV, live and cached; None likewise.
        free_bytes: memory that is free now.
        max_context: longest sequence that will be served.
        needs: what else the state budget has to hold.

    Raises:
        ConfigError: a budget is too small for one sequence.
    """
    needs = needs or StateNeeds()
    budget = int(free_bytes * _DEFAULT_SHARE) if state_budget is None else state_budget
    record = needs.codec.nbytes if needs.codec is not None else layout.state.checkpoint_bytes
    staging = needs.staging * record + needs.working
    slots, packed = _split_state(layout, needs, budget - staging, bounded=state_budget is not None)
    least = 1 + needs.scratch
    if needs.native_slots is not None and needs.native_slots < least:
        raise ConfigError(
            f"{needs.native_slots} native slots are too few: one sequence and the scratch state need {least}"
        )
    if slots < least:
        need = needs.slot_bytes(layout, least) + staging
        parts = "its slot and the padding slot" + (", a scratch slot" if needs.scratch else "")
        parts += ", records on their way to a shelf" if needs.staging else ""
        parts += ", room to pack in" if needs.working else ""
        raise ConfigError(
            f"state budget of {budget} bytes is too small: one running sequence needs {need} bytes "
            f"({parts}); raise --state-budget"
        )

    def kv_bytes(rows: int) -> int:
        return needs.decode_bytes + KVPool.bytes_for(layout.kv, rows)

    rows = _largest(kv_bytes, kv_budget, free_bytes, _MOST_CONTEXTS * max_context)
    if rows < 2:
        need = kv_bytes(2)
        raise ConfigError(f"KV budget is too small: even two tokens need {need} bytes; raise --kv-budget")
    return MemoryPlan(
        num_slots=slots,
        num_packed=packed,
        num_rows=rows,
        state_bytes=needs.slot_bytes(layout, slots),
        packed_bytes=needs.packed_bytes(packed),
        staging_bytes=staging,
        kv_bytes=kv_bytes(rows),
    )


def _split_state(layout: ModelLayout, needs: StateNeeds, budget: int, *, bounded: bool) -> tuple[int, int]:
    """Native and packed slots within ``budget`` bytes; ``bounded`` lifts the cap on what a default budget takes."""
    slot, codec = needs.slot_bytes(layout, 0), needs.codec
    chosen = needs.packed_slots if codec is not None else None
    taken = PackedPool.bytes_for(codec, chosen) if codec is not None and chosen is not None else 0
    most = (budget - taken) // slot - 1
    if needs.native_slots is not None and needs.native_slots > most:
        parts = f"{needs.native_slots} native slots" + (f" and {chosen} packed ones" if chosen is not None else "")
        need = needs.slot_bytes(layout, needs.native_slots) + taken
        raise ConfigError(f"{parts} need {need} bytes of state, and {budget} are left of the state budget")
    native = needs.native_slots or min(most, most if bounded else _MOST_SLOTS)
    if codec is None or chosen is not None:
        return native, chosen or 0
    if needs.native_slots is None:
        wanted = needs.running + needs.scratch + max(1, needs.running // 4)
        native = min(most, max(1 + needs.scratch, min(wanted, most // 2)))
    packed = usable_slots(budget - needs.slot_bytes(layout, max(native, 0)), codec.nbytes)
    return native, max(0, packed if bounded else min(packed, _MOST_SLOTS))


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
