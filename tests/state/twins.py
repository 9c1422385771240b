"""The same random tokens through a pool with logs and through one without: their states must stay the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import torch

from holdover.arch.layout import RecurrentLayer, StateLayout
from holdover.ops.conv import torch as conv
from holdover.state import SlotPool
from tests.codec.logged import DRAWS, layer, snapshot
from tests.helpers import assert_close
from tests.ops.families import Case

# two layers whose logs lie one behind the other, and two with logs of their own
LAYOUT = StateLayout(
    (layer(0, "gdn", 4), layer(1, "kda"), layer(3, "gdn", 4), layer(4, "mamba2", 4, width=4)), conv_dtype="float32"
)
RTOL = 1e-5


class Twins:
    """Slots 1 to ``slots`` of both pools have seen the same tokens; the slot above them is for comparisons.

    Args:
        merge_interval: M of the logs.
        slots: slots that are advanced.
    """

    def __init__(self, merge_interval: int, slots: int = 3) -> None:
        self.slots, self.spare = range(1, slots + 1), slots + 1
        self.logged = SlotPool(LAYOUT, self.spare, merge_interval=merge_interval)
        self.dense = SlotPool(LAYOUT, self.spare)
        assert self.logged.deferred is not None
        self.log = self.logged.deferred
        self._seeds = count()
        for pool in (self.logged, self.dense):
            for slot in range(self.spare + 1):
                pool.poison(slot)
            for slot in self.slots:
                pool.reset(slot, b"model")

    def step(self, slots: Sequence[int]) -> None:
        """One token of each slot."""
        index, drawn, ids = self._draw(slots, 1)
        opened = self.logged.begin(slots)
        for spec, (case, arguments, x, weight) in drawn.items():
            inputs = self.log.log(spec.index).layout.family.pack(*case.at(arguments, 0))
            base, log = self.logged.temporal(spec.index), self.log.log(spec.index)
            self.log.recurrence.step(base, log, self.log.cursor, index, inputs)
            self.log.convolution.step(self.logged.conv_rows(spec.index), self.log.cursor, index, x[:, 0], weight)
        self.log.recurrence.advance(self.log.cursor, index, self.log.capacity)
        self.log.advanced(slots)
        self.logged.commit(slots, opened, ids, set(self._layers))
        self._follow(slots, drawn, ids, [1] * len(slots))

    def open(self, slots: Sequence[int], tokens: int) -> tuple:
        """Run ``tokens`` drafts of each slot and leave the slots in mid-step."""
        index, drawn, ids = self._draw(slots, tokens)
        opened = self.logged.begin(slots)
        for spec, (_, arguments, x, weight) in drawn.items():
            inputs = self.log.log(spec.index).layout.family.pack(*arguments)
            base, log = self.logged.temporal(spec.index), self.log.log(spec.index)
            self.log.recurrence.verify(base, log, self.log.cursor, index, inputs)
            self.log.convolution.verify(self.logged.conv_rows(spec.index), self.log.cursor, index, x, weight)
        self.log.recurrence.advance(self.log.cursor, index, self.log.capacity, drafts=tokens)
        self.log.advanced(slots, drafts=tokens)
        return slots, tokens, opened, drawn, ids

    def close(self, step: tuple, kept: Sequence[int]) -> None:
        """Take back all but the first tokens of each slot."""
        slots, tokens, opened, drawn, ids = step
        self.logged.rollback(slots, [tokens - n for n in kept])
        self.logged.commit(slots, opened, [row[:n] for row, n in zip(ids, kept, strict=True)], set(self._layers))
        self._follow(slots, drawn, ids, kept)

    def fill(self, slot: int, length: int) -> None:
        """Advance a slot whose log is empty, to ``length`` entries above a base that is not."""
        self.step([slot])
        if length:
            self.close(self.open([slot], length), [length])
        assert self.log.length(slot) == length

    def check(self) -> None:
        """Fail unless host and device agree on every log, and every slot stands for its twin's state."""
        assert torch.stack(self.log.cursor, dim=1).tolist() == [list(pair) for pair in self.log._mirror]
        for slot in self.slots:
            if self.dense.is_whole(slot):
                self.check_slot(slot)

    def check_slot(self, slot: int) -> None:
        assert self.logged.header(slot) == self.dense.header(slot)
        self.logged.copy(slot, self.spare)
        assert self.logged.pending(self.spare) == 0
        ours, theirs = self.logged.tensors_of(self.spare), self.dense.tensors_of(slot)
        for mine, wanted in zip(ours, theirs, strict=True):
            assert_close("state", mine, wanted, RTOL)

    def bytes(self) -> list[torch.Tensor]:
        """Every byte of the pool with logs, but for the slot for comparisons."""
        self.logged.poison(self.spare)
        return snapshot(self.logged)

    @property
    def _layers(self) -> list[int]:
        return [spec.index for spec in LAYOUT.layers]

    def _draw(self, slots: Sequence[int], tokens: int):
        """Indices of the slots, each layer's random inputs ``[B, T, ...]``, and token ids that name them."""
        drawn: dict[RecurrentLayer, tuple[Case, tuple[torch.Tensor, ...], torch.Tensor, torch.Tensor]] = {}
        for spec in LAYOUT.layers:
            seed = next(self._seeds)
            case = replace(DRAWS[spec.family], heads=spec.heads, key_heads=spec.key_heads, d_k=spec.d_k, d_v=spec.d_v)
            generator = torch.Generator().manual_seed(seed)
            x = torch.randn(len(slots), tokens, spec.conv_channels, generator=generator)
            weight = torch.ones(spec.conv_channels, spec.conv_width)
            drawn[spec] = (case, case.arguments(len(slots), tokens, seed), x, weight)
        ids = [[next(self._seeds) for _ in range(tokens)] for _ in slots]
        return torch.tensor(slots), drawn, ids

    def _follow(self, slots: Sequence[int], drawn, ids: list[list[int]], kept: Sequence[int]) -> None:
        """The tokens that stayed, one by one, through the pool without logs."""
        opened = self.dense.begin(slots)
        for row, (slot, stayed) in enumerate(zip(slots, kept, strict=True)):
            one = torch.tensor([slot])
            for spec, (case, arguments, x, weight) in drawn.items():
                mine = case.at_rows(arguments, slice(row, row + 1))
                for t in range(stayed):
                    case.ops.step(self.dense.temporal(spec.index), one, *case.at(mine, t))
                    conv.step(self.dense.conv(spec.index), one, x[row : row + 1, t], weight)
        self.dense.commit(slots, opened, [row[:n] for row, n in zip(ids, kept, strict=True)], set(self._layers))
