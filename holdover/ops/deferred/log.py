"""The log of a layer: which tensors it has, in which order and dtype, how many bytes they take, and its cursor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from holdover.errors import ConfigError
from holdover.ops.deferred.family import Family

LONGEST_INTERVAL = 64

# what a decay of exp(-30) leaves is nothing in fp32; the floor bounds cumulative decays, whose rounding it limits
FLOOR = -30.0


@dataclass(frozen=True)
class LogLayout:
    """Log of one layer's slots.

    An entry is what one token wrote: the raw key, the value-side factor, and in fp32 the log decay from the last fold
    up to and including the token and, where the family has one, the key's factor. The cumulative decay of DeltaLog's
    Section 3.1 is the newest entry's and needs no tensor of its own. How many entries are live belongs to the step,
    not to a layer: the caller keeps one `Cursor` for all layers.

    Args:
        family: the recurrence.
        heads: value heads H.
        key_heads: Hk; each serves ``H // Hk`` consecutive value heads.
        d_k: key width, a power of two.
        d_v: value width.
        merge_interval: M, 1 to 64; 1 is the dense recurrence, with no log.
        key_dtype: the activations' dtype, so that raw keys lose nothing.
        value_dtype: by default fp32 for the delta rule and the activations' dtype for the others (Table 3).
        base_dtype: fp32 or bf16; the latter halves the traffic and rounds the state at every fold.

    Raises:
        ConfigError: heads do not divide, ``d_k`` is no power of two, M is out of range, or the base has another dtype.
    """

    family: Family
    heads: int
    key_heads: int
    d_k: int
    d_v: int
    merge_interval: int
    key_dtype: torch.dtype = torch.bfloat16
    value_dtype: torch.dtype | None = None
    base_dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if not 1 <= self.merge_interval <= LONGEST_INTERVAL:
            raise ConfigError(f"merge interval is {self.merge_interval}, want 1 to {LONGEST_INTERVAL}")
        if self.heads % self.key_heads:
            raise ConfigError(f"{self.heads} value heads are no multiple of {self.key_heads} key heads")
        if self.base_dtype not in (torch.float32, torch.bfloat16):
            raise ConfigError(f"base is {self.base_dtype}, want fp32 or bf16")
        if self.d_k & (self.d_k - 1):
            raise ConfigError(f"d_k is {self.d_k}, want a power of two")

    @property
    def capacity(self) -> int:
        """Entries that a slot's log holds: M - 1."""
        return self.merge_interval - 1

    @property
    def tensors(self) -> Mapping[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape of one slot and dtype of each tensor; a family without factors has no ``scales``."""
        entries = (self.heads, self.capacity)
        value_dtype = self.value_dtype or (torch.float32 if self.family.delta else self.key_dtype)
        found: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "keys": ((self.key_heads, self.capacity, self.d_k), self.key_dtype),
            "values": ((*entries, self.d_v), value_dtype),
            "decays": ((*entries, self.d_k) if self.family.per_key else entries, torch.float32),
        }
        if self.family.scaled:
            found["scales"] = (entries, torch.float32)
        return found

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot's log."""
        return sum(prod(shape) * dtype.itemsize for shape, dtype in self.tensors.values())

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry of one slot."""
        return self.slot_bytes // self.capacity if self.capacity else 0

    def allocate(self, slots: int, device: torch.device | str = "cpu") -> Log:
        """An uninitialised log for ``slots`` slots; what is not live is never read."""
        made = {
            name: torch.empty(slots, *shape, dtype=dtype, device=device)
            for name, (shape, dtype) in self.tensors.items()
        }
        return Log(self, **made)


@dataclass(frozen=True)
class Log:
    """Tensors of one layer's log, each ``[S, ...]`` as `LogLayout.tensors` says, contiguous within a slot."""

    layout: LogLayout
    keys: Tensor
    values: Tensor
    decays: Tensor
    scales: Tensor | None = None


class EntryDtypes(NamedTuple):
    """Dtypes of a log's entries, where they are not those that `LogLayout` takes by itself.

    Attributes:
        keys: of the raw keys; narrower than the activations, it loses digits.
        values: of the value-side factors.
    """

    keys: torch.dtype
    values: torch.dtype


class Cursor(NamedTuple):
    """Where every slot's log stands; all layers of a step share it, and it moves once they all are done.

    Attributes:
        length: live entries ``[S]`` int32.
        limit: live entries at which a slot's next step folds ``[S]`` int32, at most the log's capacity; with 0 every
            step is the dense recurrence in place.
    """

    length: Tensor
    limit: Tensor


def next_cursor(
    length: int, limit: int, slot: int, capacity: int, *, drafts: int | None = None, dense: bool = False
) -> tuple[int, int]:
    """Length and limit of a slot after a step, or after a verification of ``drafts`` tokens; slot 0 stays.

    A slot that leaves the dense recurrence folds first after a number of entries of its own, so that those that leave
    it together do not fold together ever after. One that is to be dense becomes so when it folds.

    Args:
        length: live entries before.
        limit: entries at which the slot folds.
        slot: which one it is.
        capacity: entries that a log holds.
        drafts: tokens that were verified, or None for one step.
        dense: whether slots are to be dense from their next fold on.
    """
    if slot == 0:
        return length, limit
    folded = length >= limit if drafts is None else length + drafts > capacity
    added, restart = (1, 0) if drafts is None else (drafts, drafts)
    length = restart if folded else length + added
    if capacity == 0 or (dense and folded):
        return length, 0
    if limit == 0:
        return length, 0 if dense else 1 + slot % capacity
    return length, capacity if folded else limit
