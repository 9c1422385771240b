"""The one primitive that runs tokens: every prefill, replay, probe and decode is a call of `Runner.run`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from holdover.engine.batch import inputs_of, step_of
from holdover.engine.decode.decoder import Decoded, Decoder
from holdover.engine.host import Host
from holdover.engine.step import Advance, KVMode, Span, StateMode, Tap
from holdover.errors import CheckpointMismatchError
from holdover.state import KeyChain, SlotPool
from holdover.store import KVPool


class StopForward(Exception):  # noqa: N818 - a signal, not an error
    """Raised by a tap to end a forward early."""


@dataclass(frozen=True)
class RunResult:
    """What a forward gave.

    Attributes:
        logits: fp32 ``[B, n, vocabulary]``; None when the forward stopped early.
        hidden: final hidden states ``[B, T, hidden]`` of all tokens, if the model has a head that drafts from them.
    """

    logits: torch.Tensor | None
    hidden: torch.Tensor | None = None


class Verification:
    """Drafts that were run and are neither accepted nor taken back: until then no slot of theirs is whole.

    Attributes:
        logits: fp32 ``[B, T, vocabulary]``.
        hidden: final hidden states ``[B, T, hidden]``, if the model has a head that drafts from them.
    """

    def __init__(self, slots: SlotPool, spans: Sequence[Span], opened: list[KeyChain], decoded: Decoded) -> None:
        self.logits, self.hidden = decoded.logits, decoded.hidden
        self._slots, self._spans, self._opened, self._decoded = slots, spans, opened, decoded

    def accept(self, kept: Sequence[int]) -> None:
        """Keep the first ``kept[i]`` tokens of span ``i`` and take the others back; the slots are whole again.

        KV rows of what is taken back hold what nobody reads: they may be written again.

        Raises:
            ValueError: a span does not have so many tokens; nothing was done.
        """
        counts = [len(span.tokens) - count for span, count in zip(self._spans, kept, strict=True)]
        if any(not 0 <= count < len(span.tokens) for span, count in zip(self._spans, counts, strict=True)):
            raise ValueError(f"{list(kept)} tokens cannot be kept of {[len(span.tokens) for span in self._spans]}")
        slots = [span.slot for span in self._spans]
        self._slots.rollback(slots, counts)
        tokens = [span.tokens[:count] for span, count in zip(self._spans, kept, strict=True)]
        self._slots.commit(slots, self._opened, tokens, self._decoded.advanced)


class Runner:
    """Runs tokens through a host, advancing recurrent state in order.

    Attention at each token sees the KV rows at positions up to its own. Spans of one call have equally many tokens;
    decode is the call with one token per span. Unless rows are appended, positions may be left out; for
    `KVMode.OVERWRITE` a slot's depth is how many tokens it has seen, wherever they stand. Used by the engine thread
    only.

    Args:
        host: the model.
        slots: its recurrent state.
        kv: its attention rows.
        decoder: runs one token of every span, and drafts; None to decode as anything else is run, and no drafts.
    """

    def __init__(self, host: Host, slots: SlotPool, kv: KVPool, decoder: Decoder | None = None) -> None:
        self.host = host
        self.slots = slots
        self.kv = kv
        self.decoder = decoder

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

        Mutates the spans' slots and, unless in `KVMode.DISCARD`, the rows of their tokens. If it raises, the slots are
        torn and can only be reset.

        Args:
            spans: what to run; equally many tokens each.
            kv: what becomes of the keys and values computed.
            state: whether the slots are sequences' own or scratch; scratch slots start from the empty state here.
            logits: how many last positions to return logits for; None for all.
            tap: receives ``(layer, name, tensor)``; see `Step`.
            stop_after_layer: end the forward once this layer has been tapped; no logits, and the slots, which then
                must be scratch, are left torn.

        Raises:
            ValueError: spans of unequal length, rows that are not one per token, positions that cannot be, or a live
                slot to be left torn.
            CheckpointMismatchError: a slot's depth is not its span's start (nothing was run), or a layer did not
                write its state or its rows.
        """
        self._check(spans, kv, state, stop_after_layer)
        slots = [span.slot for span in spans]
        if state is StateMode.SCRATCH:
            for slot in slots:
                self.slots.reset(slot, b"scratch")
        elif self.decoder is not None and len(spans[0].tokens) == 1 and kv is KVMode.APPEND and tap is None:
            opened = self.slots.begin(slots)
            decoded = self._decode(self.decoder, spans, Advance.DEFER)
            self.slots.commit(slots, opened, [span.tokens for span in spans], decoded.advanced)
            return RunResult(decoded.logits, decoded.hidden)
        self.slots.settle(slots)
        if stop_after_layer is not None:
            tap = _stopping(tap, stop_after_layer)
        step = step_of(spans, self.slots, self.kv, kv=kv, tap=tap)
        tokens, positions = inputs_of(spans, self.host.device)
        opened = self.slots.begin(slots)
        try:
            out = self.host.forward(tokens, positions, step, logits)
        except StopForward:
            return RunResult(None)
        if stop_after_layer is not None:
            return RunResult(None)
        self._check_appended(step.appended)
        # a layer counts when it wrote both parts of its state
        self.slots.commit(slots, opened, [span.tokens for span in spans], step.convolved & step.advanced)
        return RunResult(out.float(), step.hidden)

    @torch.inference_mode()
    def verify(self, spans: Sequence[Span]) -> Verification:
        """Run drafts: every span's tokens, of which the caller keeps a first part.

        Mutates the spans' slots, which are in mid-step until `Verification.accept`, and the rows of their tokens.

        Raises:
            ValueError: spans of unequal length or longer than a log, or rows that are not one per token.
            CheckpointMismatchError: as `run`.
        """
        if self.decoder is None or self.slots.deferred is None:
            raise ValueError("without a log nothing can be taken back: drafts need deferred decode")
        self._check(spans, KVMode.APPEND, StateMode.LIVE, None)
        if (length := len(spans[0].tokens)) > (capacity := self.slots.deferred.capacity):
            raise ValueError(f"{length} tokens are to be verified, and a log holds {capacity}")
        opened = self.slots.begin([span.slot for span in spans])
        return Verification(self.slots, spans, opened, self._decode(self.decoder, spans, Advance.DRAFT))

    def _decode(self, decoder: Decoder, spans: Sequence[Span], advance: Advance) -> Decoded:
        decoded = decoder.run(spans, advance)
        self._check_appended(decoded.appended)
        return decoded

    def _check_appended(self, appended: set[int]) -> None:
        # a layer behind the stack is that of a head, which runs by itself
        expected = {x.index for x in self.kv.layout.layers if x.index < self.host.layout.num_layers}
        if missing := expected - appended:
            raise CheckpointMismatchError(f"attention layers {sorted(missing)} did not hand their keys and values over")

    def _check(self, spans: Sequence[Span], kv: KVMode, state: StateMode, stop_after_layer: int | None) -> None:
        length = len(spans[0].tokens) if spans else 0
        if length < 1 or any(len(span.tokens) != length for span in spans):
            raise ValueError(f"spans of one forward need equally many tokens, got {[len(s.tokens) for s in spans]}")
        if stop_after_layer is not None and state is StateMode.LIVE:
            raise ValueError("a forward that stops early leaves its slots torn: run it on scratch slots")
        follows = kv is not KVMode.OVERWRITE and state is StateMode.LIVE
        for span in spans:
            if span.positions is not None:
                _check_places(span, span.positions, kv)
            if not span.has_rows:
                raise ValueError(f"span at {span.start} of {length} tokens has {len(span.rows)} rows")
            if follows and self.slots.depth(span.slot) != span.start:
                raise CheckpointMismatchError(
                    f"slot {span.slot} is at depth {self.slots.depth(span.slot)}, not {span.start}"
                )


def _check_places(span: Span, positions: Sequence[int], kv: KVMode) -> None:
    places = list(positions)
    if len(places) != len(span.tokens) or places[0] != span.start or places != sorted(set(places)):
        raise ValueError(f"{len(span.tokens)} tokens from {span.start} on cannot stand at {places[:8]}")
    if kv is KVMode.APPEND and not span.is_consecutive:
        raise ValueError("tokens are appended one after the other: no position between them may be left out")


def _stopping(tap: Tap | None, last: int) -> Tap:
    def wrapped(layer: int, name: str, tensor: torch.Tensor) -> None:
        if layer > last:
            raise StopForward
        if tap is not None:
            tap(layer, name, tensor)

    return wrapped
