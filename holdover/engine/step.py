"""One forward pass as the model's layers see it: whose tokens they are, and where their state and KV live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import torch

from holdover.ops.conv import torch as conv
from holdover.state import SlotPool
from holdover.store import KVPool


class KVMode(Enum):
    """What becomes of the keys and values that a forward computes.

    ``APPEND`` writes them to the sequence's new rows. ``DISCARD`` drops them: attention reads the rows that are
    cached for those tokens already, also inside the window. (``OVERWRITE``, which repairs the rows of selected
    tokens in a private copy, belongs to chunk reuse.)
    """

    APPEND = "append"
    DISCARD = "discard"


class StateMode(Enum):
    """Which recurrent state a forward advances.

    ``LIVE`` is the sequence's own slot. ``SCRATCH`` is a slot that starts from nothing and is given up afterwards.
    """

    LIVE = "live"
    SCRATCH = "scratch"


@dataclass(frozen=True)
class Span:
    """One sequence's part of a forward: consecutive tokens and what they attend to.

    Attributes:
        slot: state slot that the tokens advance.
        tokens: token ids, at least one; every span of one forward has equally many.
        start: position of the first token.
        rows: KV row of every token at positions ``0 .. start + len(tokens) - 1``, int64.
    """

    slot: int
    tokens: Sequence[int]
    start: int
    rows: torch.Tensor


class RecurrenceOp(Protocol):
    """What every recurrence family offers, advancing slots in place: ``(pool, slots, **inputs) -> readouts``."""

    @property
    def step(self) -> Callable[..., torch.Tensor]:
        """One token per sequence."""

    @property
    def sequence(self) -> Callable[..., torch.Tensor]:
        """Several tokens per sequence."""


Tap = Callable[[int, str, torch.Tensor], None]


@dataclass
class Step:
    """A forward in progress. The model's layers call it in stack order.

    It stands in the place of Transformers' cache object, so it answers to the one method of it that attention
    layers use, `update`.

    Attributes:
        slot_pool: recurrent state.
        kv_pool: attention rows.
        slots: slot of each sequence, int64 ``[B]`` on the pool's device.
        rows: rows visible to each sequence's last token, one int64 tensor per sequence.
        new_rows: rows of the tokens of this forward, int64 ``[B * T]``; None in `KVMode.DISCARD`.
        tap: receives ``(layer, name, tensor)`` for queries, keys, values and gates, or None.
        convolved: recurrent layers that have written their conv state.
        advanced: recurrent layers that have written their temporal state.
        appended: attention layers that have handed their keys and values over.
        layer: index of the attention layer that updated last.
    """

    slot_pool: SlotPool
    kv_pool: KVPool
    slots: torch.Tensor
    rows: list[torch.Tensor]
    new_rows: torch.Tensor | None
    tap: Tap | None = None
    convolved: set[int] = field(default_factory=set)
    advanced: set[int] = field(default_factory=set)
    appended: set[int] = field(default_factory=set)
    layer: int = -1

    def update(
        self, first: torch.Tensor, second: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take one layer's new keys and values (or latents): ``[B, heads, T, width]`` each.

        Returns:
            The same tensors. What attention reads comes from the pool.
        """
        self.layer = layer_idx
        self.appended.add(layer_idx)
        # a tap may end the forward: before anything of this layer is written
        if self.tap is not None:
            self.tap(layer_idx, "keys", first)
            self.tap(layer_idx, "values", second)
        if self.new_rows is not None:
            self.kv_pool.write(layer_idx, self.new_rows, _by_token(first), _by_token(second))
        return first, second

    def convolve(
        self, layer: int, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None
    ) -> torch.Tensor:
        """Causal convolution of ``x [B, T, C]`` with the layer's history, which it advances."""
        pool = self.slot_pool.conv(layer)
        self.convolved.add(layer)
        if x.shape[1] == 1:
            return conv.step(pool, self.slots, x[:, 0], weight, bias, activation).unsqueeze(1)
        return conv.sequence(pool, self.slots, x, weight, bias, activation)

    def recur(
        self, layer: int, op: RecurrenceOp, fixed: dict[str, torch.Tensor], **timed: torch.Tensor
    ) -> torch.Tensor:
        """Advance a layer's temporal state.

        Args:
            layer: the layer's index.
            op: a recurrence, such as the module `holdover.ops.recurrence.gdn.torch`.
            fixed: inputs without a time axis.
            timed: inputs ``[B, T, ...]``.

        Returns:
            Readouts ``[B, T, H, d_v]``.
        """
        pool = self.slot_pool.temporal(layer)
        if next(iter(timed.values())).shape[1] == 1:
            one = {name: x[:, 0] for name, x in timed.items()}
            out = op.step(pool, self.slots, **one, **fixed).unsqueeze(1)
        else:
            out = op.sequence(pool, self.slots, **timed, **fixed)
        self.advanced.add(layer)
        return out


def _by_token(x: torch.Tensor) -> torch.Tensor:
    # [B, heads, T, width] -> [B * T, heads, width]
    return x.transpose(1, 2).flatten(0, 1)
