"""One forward pass as the model's layers see it: whose tokens they are, and where their state and KV live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

import torch

from holdover.engine.rows import RowTable
from holdover.ops.attention import torch as attention
from holdover.ops.deferred.log import Cursor
from holdover.ops.forms import dense_conv_form, runs_native, seated_attention, sequence_form, step_form
from holdover.ops.native.mixing import Mixing
from holdover.state import DeferredLog, SlotPool
from holdover.store import KVPool


class KVMode(Enum):
    """What becomes of the keys and values that a forward computes.

    ``APPEND`` writes them to the sequence's new rows. ``OVERWRITE`` writes them over rows that the sequence has for
    those tokens already, which must be its own: tokens behind them may have rows too. ``DISCARD`` drops them:
    attention reads the rows that are cached for those tokens already, also inside the window.
    """

    APPEND = "append"
    OVERWRITE = "overwrite"
    DISCARD = "discard"


class StateMode(Enum):
    """Which recurrent state a forward advances.

    ``LIVE`` is the sequence's own slot. ``SCRATCH`` is a slot that starts from nothing and is given up afterwards.
    """

    LIVE = "live"
    SCRATCH = "scratch"


@dataclass(frozen=True)
class Span:
    """One sequence's part of a forward: tokens in order and what they attend to.

    Attributes:
        slot: state slot that the tokens advance.
        tokens: token ids, at least one; every span of one forward has equally many.
        start: position of the first token.
        rows: KV row of every token at positions ``0 .. end - 1``, int64; a table may know of further ones.
        positions: position of every token, ascending from ``start``; None for consecutive ones.
    """

    slot: int
    tokens: Sequence[int]
    start: int
    rows: torch.Tensor | RowTable
    positions: Sequence[int] | None = None

    @property
    def places(self) -> Sequence[int]:
        """Position of every token."""
        return range(self.start, self.start + len(self.tokens)) if self.positions is None else self.positions

    @property
    def end(self) -> int:
        """Position behind the last token."""
        return self.start + len(self.tokens) if self.positions is None else self.positions[-1] + 1

    @property
    def is_consecutive(self) -> bool:
        """Whether no position between two tokens is left out."""
        return self.positions is None or self.end - self.start == len(self.tokens)

    @property
    def stamp(self) -> object | None:
        """The same object for as long as rows once handed over stay what they were; None if nobody says so."""
        return self.rows.stamp if isinstance(self.rows, RowTable) else None

    @property
    def has_rows(self) -> bool:
        """Whether every token up to its last one has a row."""
        known, end = len(self.rows), self.end
        return known >= end if isinstance(self.rows, RowTable) else known == end

    def own_rows(self) -> list[int]:
        """Rows of its own tokens, which must be consecutive."""
        if isinstance(self.rows, RowTable):
            return self.rows.numbers(self.start, self.end)
        rows: list[int] = self.rows[self.start : self.end].tolist()
        return rows


class RecurrenceOp(Protocol):
    """What every recurrence family offers, advancing slots in place: ``(pool, slots, **inputs) -> readouts``."""

    @property
    def step(self) -> Callable[..., torch.Tensor]:
        """One token per sequence."""

    @property
    def sequence(self) -> Callable[..., torch.Tensor]:
        """Several tokens per sequence."""


Tap = Callable[[int, str, torch.Tensor], None]


class Advance(Enum):
    """How a forward advances the recurrent state.

    ``WRITE`` runs any number of tokens and writes the slots' bases, which must have no log; so must they for
    ``DENSE``, one token with the deferred ops' kernels. ``DEFER`` runs one token and appends it to the log, or folds;
    ``DRAIN`` does the same, but a slot whose log was folded stays without one. ``DRAFT`` runs several tokens and
    appends them all, so that the last ones can be taken back.
    """

    WRITE = "write"
    DENSE = "dense"
    DEFER = "defer"
    DRAIN = "drain"
    DRAFT = "draft"

    def drafts(self, tokens: int) -> int | None:
        """Tokens that a forward of so many each appends as drafts; None where it does not."""
        return tokens if self is Advance.DRAFT else None


class Seats(NamedTuple):
    """Where the rows of each sequence of a batch stand on the device.

    Attributes:
        table: row of every token of every seat, int32 ``[seats, context]``.
        seats: seat of each sequence, int64 ``[B]``.
        lengths: tokens of each sequence, this forward's included, int32 ``[B]``; 0 for padding.
    """

    table: torch.Tensor
    seats: torch.Tensor
    lengths: torch.Tensor


@dataclass
class Step:
    """A forward in progress. The model's layers call it in stack order.

    It stands in the place of Transformers' cache object, so it answers to the one method of it that attention
    layers use, `update`.

    Attributes:
        slot_pool: recurrent state.
        kv_pool: attention rows.
        slots: slot of each sequence, int64 ``[B]`` on the pool's device; 0 for padding, where steps are deferred.
        rows: rows visible to each sequence's last token, one int64 tensor per sequence; or where they stand.
        new_rows: rows of the tokens of this forward, int64 ``[B * T]``; None in `KVMode.DISCARD`.
        advance: how recurrent state is advanced.
        tap: receives ``(layer, name, tensor)``, or None. Of attention: ``keys``, ``values`` (or latents and shared key
            parts), ``queries`` as they meet the rows ``[B, T, Hq, D]``, the ``scale`` of their products, and what
            comes of it as ``attended [B, T, Hq, d_v]``. Of recurrent layers: the convolution's input as ``conv``,
            ``log_decay``, and the recurrence's inputs as ``input NAME``, those without a time axis as ``fixed NAME``.
        positions: where in ``rows`` each token stands, int64 ``[B, T]``; None for the last ones.
        convolved: recurrent layers that have written their conv state.
        advanced: recurrent layers that have written their temporal state.
        appended: attention layers that have handed their keys and values over.
        layer: index of the attention layer that updated last.
        hidden: the model's final hidden states ``[B, T, hidden]``, if it has a head that drafts from them.
    """

    slot_pool: SlotPool
    kv_pool: KVPool
    slots: torch.Tensor
    rows: Sequence[torch.Tensor] | Seats
    new_rows: torch.Tensor | None
    advance: Advance = Advance.WRITE
    tap: Tap | None = None
    positions: torch.Tensor | None = None
    convolved: set[int] = field(default_factory=set)
    advanced: set[int] = field(default_factory=set)
    appended: set[int] = field(default_factory=set)
    layer: int = -1
    hidden: torch.Tensor | None = None

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

    def attend(self, query: torch.Tensor, scaling: float) -> torch.Tensor:
        """Attention of ``query [B, T, Hq, D]`` over the rows of the layer that updated last: ``[B, T, Hq, d_v]``."""
        first, second = self.kv_pool.planes(self.layer)
        window = self.kv_pool.layer(self.layer).window
        if isinstance(self.rows, Seats):
            out: torch.Tensor = seated_attention().paged_attention(query, first, second, *self.rows, scaling, window)
            return out
        return attention.paged_attention(query, first, second, self.rows, scaling, window, self.positions)

    def attend_latent(
        self, q_nope: torch.Tensor, q_rope: torch.Tensor, w_k: torch.Tensor, w_v: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """The same over latents, whose expansions ``w_k [H, d_n, c]`` and ``w_v [H, d_v, c]`` are absorbed."""
        latent, rope = self.kv_pool.planes(self.layer)
        if isinstance(self.rows, Seats):
            out: torch.Tensor = seated_attention().paged_latent_attention(
                q_nope, q_rope, latent, rope, *self.rows, w_k, w_v, scaling
            )
            return out
        return attention.paged_latent_attention(
            q_nope, q_rope, latent, rope, self.rows, w_k, w_v, scaling, self.positions
        )

    def convolve(
        self, layer: int, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None
    ) -> torch.Tensor:
        """Causal convolution of ``x [B, T, C]`` with the layer's history, which it advances."""
        if self.tap is not None:
            self.tap(layer, "conv", x)
        self.convolved.add(layer)
        if self.advance is not Advance.WRITE:
            return self._convolve_deferred(layer, x, weight, bias, activation)
        pool = self.slot_pool.conv(layer)
        conv = dense_conv_form(pool)
        out: torch.Tensor
        if x.shape[1] == 1:
            out = conv.step(pool, self.slots, x[:, 0], weight, bias, activation).unsqueeze(1)
        else:
            out = conv.sequence(pool, self.slots, x, weight, bias, activation)
        return out

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
        if self.tap is not None:
            for name, tensor in timed.items():
                self.tap(layer, f"input {name}", tensor)
            for name, tensor in fixed.items():
                self.tap(layer, f"fixed {name}", tensor)
        self.advanced.add(layer)
        if self.advance is not Advance.WRITE:
            return self._recur_deferred(layer, fixed, timed)
        pool = self.slot_pool.temporal(layer)
        if next(iter(timed.values())).shape[1] == 1:
            one = {name: x[:, 0] for name, x in timed.items()}
            return step_form(op, pool)(pool, self.slots, **one, **fixed).unsqueeze(1)
        return sequence_form(op, pool)(pool, self.slots, **timed, **fixed)

    def mix(self, layer: int, mixing: Mixing | None, **inputs: torch.Tensor) -> torch.Tensor | None:
        """One token through a recurrent layer between its projections, in one compiled call.

        Args:
            layer: the layer's index.
            mixing: its parameters; None where they cannot be read by compiled functions.
            inputs: of `Mixing.step` ``[B, T, ...]``.

        Returns:
            ``[B, 1, H * d_v]``, having advanced both states; None, having done nothing, where the layer has to be
            computed part by part: of several tokens, with a log or a tap, or without compiled functions.
        """
        channels = inputs["channels"]
        if mixing is None or channels.shape[1] != 1 or self.advance is not Advance.WRITE or self.tap is not None:
            return None
        histories, states = self.slot_pool.conv(layer), self.slot_pool.temporal(layer)
        if not all(runs_native(x) for x in (histories, states, channels)):
            return None
        self.convolved.add(layer)
        self.advanced.add(layer)
        one = {name: x[:, 0] for name, x in inputs.items()}
        return mixing.step(histories, states, self.slots, **one).unsqueeze(1)

    def _convolve_deferred(
        self, layer: int, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None
    ) -> torch.Tensor:
        log, rows = self._log, self.slot_pool.conv_rows(layer)
        out: torch.Tensor
        if self.advance is Advance.DRAFT:
            out = log.convolution.verify(rows, log.cursor, self.slots, x, weight, bias, activation)
            return out
        if self.advance is Advance.DENSE:
            rows = self.slot_pool.conv(layer)
        out = log.convolution.step(rows, self._cursor, self.slots, x[:, 0], weight, bias, activation)
        return out.unsqueeze(1)

    def _recur_deferred(
        self, layer: int, fixed: dict[str, torch.Tensor], timed: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        log, base = self._log, self.slot_pool.temporal(layer)
        entries = log.dense_log(layer) if self.advance is Advance.DENSE else log.log(layer)
        out: torch.Tensor
        if self.advance is Advance.DRAFT:
            inputs = entries.layout.family.pack(**timed, **fixed)
            out = log.recurrence.verify(base, entries, log.cursor, self.slots, inputs)
            return out
        inputs = entries.layout.family.pack(**{name: x[:, 0] for name, x in timed.items()}, **fixed)
        out = log.recurrence.step(base, entries, self._cursor, self.slots, inputs)
        return out.unsqueeze(1)

    @property
    def _cursor(self) -> Cursor:
        return self._log.empty_cursor if self.advance is Advance.DENSE else self._log.cursor

    @property
    def _log(self) -> DeferredLog:
        assert self.slot_pool.deferred is not None
        return self.slot_pool.deferred


def _by_token(x: torch.Tensor) -> torch.Tensor:
    # [B, heads, T, width] -> [B * T, heads, width]
    return x.transpose(1, 2).flatten(0, 1)
