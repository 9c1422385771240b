"""The one primitive that runs tokens: every prefill, replay, probe and decode is a call of `Runner.run`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from holdover.arch.layout import ModelLayout
from holdover.engine.step import KVMode, Span, StateMode, Step, Tap
from holdover.errors import CheckpointMismatchError
from holdover.state import SlotPool
from holdover.store import KVPool


class Host(Protocol):
    """A model that runs on Holdover's pools."""

    layout: ModelLayout

    @property
    def device(self) -> torch.device:
        """Where the model is."""

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, step: Step, logits: int | None) -> torch.Tensor:
        """Run ``tokens [B, T]``; logits of the last ``logits`` positions, or of all for None."""


class StopForward(Exception):  # noqa: N818 - a signal, not an error
    """Raised by a tap to end a forward early."""


@dataclass(frozen=True)
class RunResult:
    """What a forward gave.

    Attributes:
        logits: fp32 ``[B, n, vocabulary]``; None when the forward stopped early.
    """

    logits: torch.Tensor | None


class Runner:
    """Runs tokens through a host, advancing recurrent state in order.

    Attention at each token sees the KV rows at positions up to its own. Spans of one call have equally many tokens;
    decode is the call with one token per span. Used by the engine thread only.

    Args:
        host: the model.
        slots: its recurrent state.
        kv: its attention rows.
    """

    def __init__(self, host: Host, slots: SlotPool, kv: KVPool) -> None:
        self.host = host
        self.slots = slots
        self.kv = kv

    @torch.inference_mode()
    def run(
        self,
        spans: Sequence[Span],
        *,
        kv: KVMode = KVMode.APPEND,
        state: StateMode = StateMode.LIVE,
        logits: int | None = 1,
        tap: Tap | None = None,
        stop_after_layer: int | None = None,
    ) -> RunResult:
        """Advance each span's slot through its tokens.

        Mutates the spans' slots and, in `KVMode.APPEND`, the rows of their tokens. If it raises, the slots are torn
        and can only be reset.

        Args:
            spans: what to run; equally many tokens each.
            kv: what becomes of the keys and values computed.
            state: whether the slots are sequences' own or scratch; scratch slots start from the empty state here.
            logits: how many last positions to return logits for; None for all.
            tap: receives ``(layer, name, tensor)`` for keys, values, queries and gates.
            stop_after_layer: end the forward once this layer has been tapped; no logits, and the slots, which then
                must be scratch, are left torn.

        Raises:
            ValueError: spans of unequal length, rows that are not one per token, or a live slot to be left torn.
            CheckpointMismatchError: a slot's depth is not its span's start (nothing was run), or a layer did not
                write its state or its rows.
        """
        self._check(spans, state, stop_after_layer)
        slots = [span.slot for span in spans]
        if state is StateMode.SCRATCH:
            for slot in slots:
                self.slots.reset(slot, b"scratch")
        step = self._step(spans, kv, tap if stop_after_layer is None else _stopping(tap, stop_after_layer))
        length, device = len(spans[0].tokens), self.host.device
        tokens = torch.tensor([list(span.tokens) for span in spans], device=device)
        starts = torch.tensor([[span.start] for span in spans], device=device)
        positions = starts + torch.arange(length, device=device)
        opened = self.slots.begin(slots)
        try:
            out = self.host.forward(tokens, positions, step, logits)
        except StopForward:
            return RunResult(None)
        if stop_after_layer is not None:
            return RunResult(None)
        if missing := {layer.index for layer in self.kv.layout.layers} - step.appended:
            raise CheckpointMismatchError(f"attention layers {sorted(missing)} did not hand their keys and values over")
        # a layer counts when it wrote both parts of its state
        self.slots.commit(slots, opened, [span.tokens for span in spans], step.convolved & step.advanced)
        return RunResult(out.float())

    def _check(self, spans: Sequence[Span], state: StateMode, stop_after_layer: int | None) -> None:
        length = len(spans[0].tokens) if spans else 0
        if length < 1 or any(len(span.tokens) != length for span in spans):
            raise ValueError(f"spans of one forward need equally many tokens, got {[len(s.tokens) for s in spans]}")
        if stop_after_layer is not None and state is StateMode.LIVE:
            raise ValueError("a forward that stops early leaves its slots torn: run it on scratch slots")
        for span in spans:
            if len(span.rows) != span.start + length:
                raise ValueError(f"span at {span.start} of {length} tokens has {len(span.rows)} rows")
            if state is StateMode.LIVE and self.slots.depth(span.slot) != span.start:
                raise CheckpointMismatchError(
                    f"slot {span.slot} is at depth {self.slots.depth(span.slot)}, not {span.start}"
                )

    def _step(self, spans: Sequence[Span], kv: KVMode, tap: Tap | None) -> Step:
        device = self.host.device
        rows = [span.rows.to(device) for span in spans]
        length = len(spans[0].tokens)
        appended = kv is KVMode.APPEND and bool(self.kv.layout.layers)
        return Step(
            slot_pool=self.slots,
            kv_pool=self.kv,
            slots=torch.tensor([span.slot for span in spans], device=device),
            rows=rows,
            new_rows=torch.cat([r[-length:] for r in rows]) if appended else None,
            tap=tap,
        )


def _stopping(tap: Tap | None, last: int) -> Tap:
    def wrapped(layer: int, name: str, tensor: torch.Tensor) -> None:
        if layer > last:
            raise StopForward
        if tap is not None:
            tap(layer, name, tensor)

    return wrapped
