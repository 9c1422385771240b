"""Live recurrent state of many sequences in one allocation per kind of layer.

A slot holds one sequence's whole state: every layer's temporal and conv state. Depth and key are kept *with* the
slot, advance only when every layer was written, and travel with every copy, so a slot cannot be taken for another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from holdover.arch.layout import DTYPE_BYTES, StateLayout
from holdover.errors import CheckpointMismatchError
from holdover.ops.deferred.log import EntryDtypes
from holdover.state.deferred import DeferredLog
from holdover.state.header import EXACT, CheckpointHeader, Lineage
from holdover.state.key import KeyChain

# padding rows of a batch read and write this slot; no sequence ever owns it
SINK = 0


class SlotPool:
    """Slots of recurrent state, advanced in place.

    Slots are numbered from 1; slot 0 is the sink. The pool does not know who owns a slot (see `SlotAllocator`).
    One thread uses it.

    Where steps are deferred, a slot's state is its base (`temporal`, `conv`) *and* a log of recent updates. Whatever
    takes a state out of a slot takes both; what reads the base alone refuses a slot that has more than that.

    Args:
        layout: state of one sequence.
        num_slots: usable slots, the sink not counted.
        device: where the state lives.
        merge_interval: steps between two writes of a slot's base, 1 to 64, for the deferred ops; None for the dense
            ones, which need no log.
        entries: dtypes of the logs' entries; see `DeferredLog`.

    Raises:
        ConfigError: the layout's state cannot have a log.
    """

    def __init__(
        self,
        layout: StateLayout,
        num_slots: int,
        device: torch.device | str = "cpu",
        *,
        merge_interval: int | None = None,
        entries: EntryDtypes | None = None,
    ) -> None:
        self.layout = layout
        self.num_slots = num_slots
        extra = (merge_interval or 1) - 1
        temporal = {x.index: (x.heads, x.d_k, x.d_v) for x in layout.layers}
        # past inputs, and those of the tokens in the log
        conv = {x.index: (x.conv_width - 1 + extra, x.conv_channels) for x in layout.layers}
        device = torch.device(device)
        temporal_tensors, self._temporal = _allocate(temporal, num_slots + 1, layout.temporal_dtype, device)
        conv_tensors, self._conv = _allocate(conv, num_slots + 1, layout.conv_dtype, device)
        self._tensors = temporal_tensors + conv_tensors
        self._base = temporal_tensors + [t[:, :, : t.shape[2] - extra] for t in conv_tensors]
        # "cuda" has become the device that it stood for
        self.device = self._tensors[0].device
        self.deferred = (
            None if merge_interval is None else DeferredLog(layout, num_slots + 1, self.device, merge_interval, entries)
        )
        self._layers = frozenset(temporal)
        self._chains: list[KeyChain | None] = [None] * (num_slots + 1)
        self._lineage: list[Lineage] = [EXACT] * (num_slots + 1)
        # chains of the slots that are in mid-step
        self._open: dict[int, KeyChain] = {}

    @staticmethod
    def bytes_for(layout: StateLayout, num_slots: int, merge_interval: int | None = None) -> int:
        """Exact bytes that a pool of ``num_slots`` allocates, the sink, logs and cursors included.

        Raises:
            ConfigError: the layout's state cannot have a log.
        """
        base = layout.checkpoint_bytes * (num_slots + 1)
        if merge_interval is None:
            return base
        channels = sum(layer.conv_channels for layer in layout.layers)
        inputs = (merge_interval - 1) * channels * DTYPE_BYTES[layout.conv_dtype] * (num_slots + 1)
        return base + inputs + DeferredLog.bytes_for(layout, num_slots + 1, merge_interval)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors of the pool."""
        own = sum(t.numel() * t.element_size() for t in self._tensors)
        return own if self.deferred is None else own + self.deferred.nbytes

    def temporal(self, layer: int) -> torch.Tensor:
        """Temporal state of one layer as of the last fold, a view ``[slots, H, d_k, d_v]``."""
        return self._temporal[layer]

    def conv(self, layer: int) -> torch.Tensor:
        """Conv inputs of one layer before the last fold, oldest first, a view ``[slots, width - 1, channels]``."""
        rows = self._conv[layer]
        return rows if self.deferred is None else rows[:, : rows.shape[1] - self.deferred.capacity]

    def conv_rows(self, layer: int) -> torch.Tensor:
        """The same with the inputs of the log's tokens behind them: ``[slots, width - 1 + capacity, channels]``."""
        return self._conv[layer]

    def pending(self, slot: int) -> int:
        """Tokens that are in a slot's log and not in its base."""
        return 0 if self.deferred is None else self.deferred.length(slot)

    def settle(self, slots: Sequence[int]) -> None:
        """Fold the logs of ``slots`` into their bases; the states that they stand for stay what they are.

        A slot whose log was folded in some layers only is not whole any more.

        Raises:
            CheckpointMismatchError: a slot with a log is not whole, as between `begin` and `commit`; none was folded.
        """
        if self.deferred is None or not (slots := [slot for slot in slots if self.pending(slot)]):
            return
        chains = [self._whole(slot) for slot in slots]
        for slot in slots:
            self._chains[slot] = None
        index = self.deferred.index(slots)
        for layer in self._layers:
            self.deferred.recurrence.fold(self._temporal[layer], self.deferred.log(layer), self.deferred.cursor, index)
            self.deferred.convolution.settle(self._conv[layer], self.deferred.cursor, index)
        self.deferred.emptied(slots)
        for slot, chain in zip(slots, chains, strict=True):
            self._chains[slot] = chain

    def reset(self, slot: int, namespace: bytes) -> None:
        """Make a slot the state of the empty sequence. Mutates the slot."""
        self.forget(slot)
        for tensor in self._base:
            tensor[:, slot].zero_()
        self._lineage[slot] = EXACT
        self._chains[slot] = KeyChain(namespace)

    def copy(self, source: int, target: int) -> None:
        """Copy one slot's state, depth, key and lineage over another, which then has no log. Mutates ``target`` only.

        Raises:
            CheckpointMismatchError: the source was never written whole, or was left in mid-step.
        """
        chain = self._whole(source)
        self.forget(target)
        if self.pending(source):
            self._materialise(source, target)
        else:
            for tensor in self._base:
                tensor[:, target].copy_(tensor[:, source])
        self._lineage[target] = self._lineage[source]
        self._chains[target] = chain.copy()

    def header(self, slot: int) -> CheckpointHeader:
        """Describe a slot's state as it is now.

        Raises:
            CheckpointMismatchError: the slot is not whole.
        """
        chain = self._whole(slot)
        return CheckpointHeader(chain.depth, chain.key(), self.layout.digest, self._lineage[slot])

    def depth(self, slot: int) -> int:
        """Tokens that a slot's state has seen.

        Raises:
            CheckpointMismatchError: the slot is not whole.
        """
        return self._whole(slot).depth

    def is_whole(self, slot: int) -> bool:
        """Whether every layer of the slot stands at one depth."""
        return self._chains[slot] is not None

    def begin(self, slots: Sequence[int]) -> list[KeyChain]:
        """Open a step that will advance ``slots``; until `commit` they are not whole.

        Returns:
            What `commit` needs. A step that fails simply never commits.

        Raises:
            CheckpointMismatchError: a slot is not whole, or is named twice; none was opened.
        """
        opened = {slot: self._whole(slot) for slot in slots}
        if len(opened) != len(slots):
            raise CheckpointMismatchError(f"a step can advance a slot once, not as in {list(slots)}")
        for slot in slots:
            self._chains[slot] = None
        self._open.update(opened)
        return list(opened.values())

    def commit(
        self,
        slots: Sequence[int],
        chains: Sequence[KeyChain],
        tokens: Sequence[Sequence[int]],
        written: set[int],
    ) -> None:
        """Close a step: every slot saw its tokens in every layer.

        Args:
            slots: slots given to `begin`.
            chains: what `begin` returned.
            tokens: tokens that each slot was advanced by.
            written: indices of the layers that wrote their temporal and conv state.

        Raises:
            CheckpointMismatchError: a layer was not written, or a slot was given another state since `begin`; the
                slots that were in mid-step stay unusable until reset.
        """
        opened = [self._open.pop(slot, None) for slot in slots]
        if not len(slots) == len(chains) == len(tokens) or any(
            ours is not theirs for ours, theirs in zip(opened, chains, strict=True)
        ):
            raise CheckpointMismatchError(f"slots {list(slots)} are not in the step that is committed")
        if written != self._layers:
            missing = sorted(self._layers - written)
            raise CheckpointMismatchError(f"layers {missing} did not write their state; slots {list(slots)} are torn")
        for slot, chain, ids in zip(slots, chains, tokens, strict=True):
            chain.extend(ids)
            self._chains[slot] = chain

    def rollback(self, slots: Sequence[int], counts: Sequence[int]) -> None:
        """Take back the last ``counts`` tokens of slots that are in mid-step: temporal and conv state together.

        What is taken back is what the log holds; KV rows are the caller's. A slot that has been committed cannot be
        taken back: its depth, and whatever was published of it, would lie.

        Raises:
            CheckpointMismatchError: a slot is not in mid-step, or has no log; nothing was taken back.
            ValueError: a log is shorter than what is to be taken back; likewise.
        """
        if closed := [slot for slot in slots if slot not in self._open]:
            raise CheckpointMismatchError(f"slots {closed} are not in mid-step: what they have seen is committed")
        if self.deferred is None:
            raise CheckpointMismatchError("a pool without logs cannot take tokens back")
        self.deferred.rollback(slots, counts)

    def adopt(self, slot: int, chain: KeyChain, lineage: Lineage) -> None:
        """Declare that bytes written into a slot from outside are the state of ``chain``'s tokens. Mutates the slot.

        For restoring from encoded bytes only: the caller has verified what they are, and has written all of them.
        """
        self.forget(slot)
        self._lineage[slot] = lineage
        self._chains[slot] = chain

    def chain(self, slot: int) -> KeyChain:
        """A copy of a slot's running key.

        Raises:
            CheckpointMismatchError: the slot is not whole.
        """
        return self._whole(slot).copy()

    def relabel(self, slot: int, lineage: Lineage) -> None:
        """Say how a slot's state came to be. Mutates the slot's record only.

        Raises:
            CheckpointMismatchError: the slot is not whole.
        """
        self._whole(slot)
        self._lineage[slot] = lineage

    def forget(self, slot: int) -> None:
        """Make a slot nobody's state: it cannot be read, copied or advanced until `reset` or a copy onto it."""
        self._chains[slot] = None
        self._open.pop(slot, None)
        if self.deferred is not None:
            self.deferred.clear([slot])

    def poison(self, slot: int) -> None:
        """Fill a slot with NaN and forget what it was (tests; a freed slot must never be read)."""
        self.forget(slot)
        for tensor in self._tensors:
            tensor[:, slot].fill_(float("nan"))
        if self.deferred is not None:
            for tensor in self.deferred.tensors:
                tensor[slot].fill_(float("nan"))

    def tensors_of(self, slot: int) -> list[torch.Tensor]:
        """Every tensor of one slot's base, as views ``[layers, ...]``, in a fixed order.

        Raises:
            CheckpointMismatchError: the slot's state is more than its base: `settle` it first.
        """
        if count := self.pending(slot):
            raise CheckpointMismatchError(f"slot {slot} has {count} tokens in its log: its base is not its state")
        return [tensor[:, slot] for tensor in self._base]

    def _materialise(self, source: int, target: int) -> None:
        """Write the state that base and log of ``source`` stand for into ``target``'s base."""
        assert self.deferred is not None
        log, sources, targets = self.deferred, self.deferred.index([source]), self.deferred.index([target])
        for layer in self._layers:
            log.recurrence.materialise(self._temporal[layer], log.log(layer), log.cursor, sources, targets)
            log.convolution.materialise(self._conv[layer], log.cursor, sources, targets)

    def _whole(self, slot: int) -> KeyChain:
        chain = self._chains[slot]
        if chain is None:
            raise CheckpointMismatchError(f"slot {slot} is not whole: it was never written or a step on it failed")
        return chain


def _allocate(
    shapes: Mapping[int, tuple[int, ...]], slots: int, dtype: str, device: torch.device
) -> tuple[list[torch.Tensor], dict[int, torch.Tensor]]:
    """Allocate ``[layers, slots, *shape]`` per distinct shape; return the tensors and each layer's view."""
    # copying a slot is then one call per shape, not one per layer
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for layer, shape in shapes.items():
        by_shape.setdefault(shape, []).append(layer)
    tensors, views = [], {}
    for shape, layers in by_shape.items():
        tensor = torch.zeros(len(layers), slots, *shape, dtype=getattr(torch, dtype), device=device)
        tensors.append(tensor)
        views.update({layer: tensor[i] for i, layer in enumerate(layers)})
    return tensors, views
