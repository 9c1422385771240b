"""The log beside the slots: recent updates of every recurrent layer that its base does not hold yet (DeltaLog, §3).

How long a slot's log is belongs to the slot, not to a layer: all layers share one cursor, which moves once they all
are done. The host keeps a mirror of it, so that nobody has to ask the device where a slot stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from holdover.arch.layout import RecurrentLayer, StateLayout
from holdover.errors import ConfigError
from holdover.ops.deferred.family import FAMILIES
from holdover.ops.deferred.log import Cursor, EntryDtypes, Log, LogLayout, next_cursor
from holdover.ops.forms import conv_form, deferred_form

# length, limit and the zero that stands for both in a dense step, int32 each
_CURSOR_BYTES = 12


class DeferredLog:
    """Logs of all layers, and where every slot's log stands.

    Args:
        layout: state of one sequence; its temporal state is fp32.
        num_slots: slots, the sink included.
        device: where the logs live.
        merge_interval: M, 1 to 64; with 1 there is no log, and a step is the dense recurrence in place.
        entries: dtypes of the entries; None for keys as the activations are and values as `LogLayout` has them.

    Raises:
        ConfigError: the state cannot have a log.
    """

    def __init__(
        self,
        layout: StateLayout,
        num_slots: int,
        device: torch.device,
        merge_interval: int,
        entries: EntryDtypes | None = None,
    ) -> None:
        self.capacity = merge_interval - 1
        self._logs, self._dense_logs = (_allocate(layout, num_slots, device, m, entries) for m in (merge_interval, 1))
        length, limit, zero = torch.zeros(3, num_slots, dtype=torch.int32, device=device).unbind()
        self.cursor, self.empty_cursor = Cursor(length, limit), Cursor(zero, zero)
        self._mirror = [(0, 0)] * num_slots
        # slots that a step was to move since they were cleared: mirror and cursor agree only if it ended
        self._moved: set[int] = set()
        self.recurrence = deferred_form(device)
        self.convolution = conv_form(device)

    @staticmethod
    def bytes_for(layout: StateLayout, num_slots: int, merge_interval: int) -> int:
        """Exact bytes of the logs and the cursor of ``num_slots`` slots, the sink among them; not of the conv rows.

        Raises:
            ConfigError: the state cannot have a log.
        """
        logs = sum(_log_layout(layer, layout, merge_interval).slot_bytes for layer in layout.layers)
        return (logs + _CURSOR_BYTES) * num_slots

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Every tensor of the logs, ``[slots, ...]``, without the cursor."""
        parts = [(log.keys, log.values, log.decays, log.scales) for log in self._logs.values()]
        return [x for part in parts for x in part if x is not None]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(x.numel() * x.element_size() for x in (*self.tensors, *self.cursor, self.empty_cursor.length))

    def log(self, layer: int) -> Log:
        """Log of one layer. Those of layers with equal log layouts lie one behind the other, in stack order."""
        return self._logs[layer]

    def dense_log(self, layer: int) -> Log:
        """A log that holds nothing, for dense steps of one layer with `empty_cursor`."""
        return self._dense_logs[layer]

    def length(self, slot: int) -> int:
        """Live entries of a slot's log."""
        return self._mirror[slot][0]

    def folds(self, slot: int, drafts: int | None = None) -> bool:
        """Whether the next step of a slot, or its next verification of ``drafts`` tokens, writes its base."""
        length, limit = self._mirror[slot]
        return length >= limit if drafts is None else length > 0 and length + drafts > self.capacity

    def clear(self, slots: Sequence[int]) -> None:
        """Drop what is pending in ``slots``. Their next step folds; the cycle after it has a length of its own."""
        moved = [slot for slot in slots if slot in self._moved]
        if moved:
            index = self.index(moved)
            for tensor in self.cursor:
                tensor[index] = 0
        for slot in moved:
            self._mirror[slot] = (0, 0)
        # last: who is interrupted before must not find them cleared
        self._moved.difference_update(moved)

    def emptied(self, slots: Sequence[int]) -> None:
        """The logs of ``slots`` were folded into their bases."""
        index = self.index(slots)
        self.cursor.length[index] = 0
        for slot in slots:
            self._mirror[slot] = (0, self._mirror[slot][1])

    def advanced(self, slots: Sequence[int], *, drafts: int | None = None, dense: bool = False) -> None:
        """Note on the host what the ops' ``advance`` does to the cursor on the device."""
        self._moved.update(slots)
        for slot in slots:
            length, limit = self._mirror[slot]
            self._mirror[slot] = next_cursor(length, limit, slot, self.capacity, drafts=drafts, dense=dense)

    def rollback(self, slots: Sequence[int], counts: Sequence[int]) -> None:
        """Take back the last ``counts`` entries of each slot's log.

        Raises:
            ValueError: a slot's log is shorter than that; nothing was taken back.
        """
        for slot, count in zip(slots, counts, strict=True):
            if not 0 <= count <= self.length(slot):
                raise ValueError(f"{count} tokens cannot be taken back: the log of slot {slot} has {self.length(slot)}")
        if not any(counts):
            return
        taken = torch.tensor(counts, dtype=torch.int32, device=self.cursor.length.device)
        self.recurrence.rollback(self.cursor, self.index(slots), taken)
        for slot, count in zip(slots, counts, strict=True):
            length, limit = self._mirror[slot]
            self._mirror[slot] = (length - count, limit)

    def index(self, slots: Sequence[int]) -> torch.Tensor:
        """``slots`` as the ops take them, int64 on the device."""
        return torch.tensor(slots, dtype=torch.int64, device=self.cursor.length.device)


def _allocate(
    layout: StateLayout, slots: int, device: torch.device, merge_interval: int, entries: EntryDtypes | None
) -> dict[int, Log]:
    """A log for every layer, by its index."""
    # one launch can then walk those of equal layers
    alike: dict[LogLayout, list[int]] = {}
    for layer in layout.layers:
        alike.setdefault(_log_layout(layer, layout, merge_interval, entries), []).append(layer.index)
    logs = {}
    for log_layout, layers in alike.items():
        whole = log_layout.allocate(len(layers) * slots, device)
        logs.update({layer: _part(whole, i * slots, slots) for i, layer in enumerate(layers)})
    return logs


def _part(log: Log, start: int, slots: int) -> Log:
    keys, values, decays = (x[start : start + slots] for x in (log.keys, log.values, log.decays))
    scales = None if log.scales is None else log.scales[start : start + slots]
    return replace(log, keys=keys, values=values, decays=decays, scales=scales)


def _log_layout(
    layer: RecurrentLayer, layout: StateLayout, merge_interval: int, entries: EntryDtypes | None = None
) -> LogLayout:
    if layout.temporal_dtype != "float32":
        raise ConfigError(f"deferred decode keeps an fp32 state, and this one is {layout.temporal_dtype}")
    return LogLayout(
        FAMILIES[layer.family],
        layer.heads,
        layer.key_heads,
        layer.d_k,
        layer.d_v,
        merge_interval,
        key_dtype=getattr(torch, layout.conv_dtype) if entries is None else entries.keys,
        value_dtype=None if entries is None else entries.values,
    )
