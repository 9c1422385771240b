"""Decode as plain calls, on any device."""

from __future__ import annotations

from collections.abc import Sequence

from holdover.engine.batch import inputs_of, step_of
from holdover.engine.decode.decoder import Decoded, DecodeStats
from holdover.engine.host import Host
from holdover.engine.step import Advance, Span
from holdover.state import SlotPool
from holdover.store import KVPool


class EagerDecoder:
    """Runs the model's forward as it stands.

    Args:
        host: the model.
        slots: its recurrent state, with logs.
        kv: its attention rows.
    """

    nbytes = 0

    def __init__(self, host: Host, slots: SlotPool, kv: KVPool) -> None:
        assert slots.deferred is not None
        self.stats = DecodeStats()
        self._host, self._slots, self._kv, self._log = host, slots, kv, slots.deferred

    def warm_up(self) -> None:
        """Nothing: plain calls are as fast the first time."""

    def run(self, spans: Sequence[Span], advance: Advance) -> Decoded:
        """Run every span's tokens; see `Decoder.run`."""
        slots, log, length = [span.slot for span in spans], self._log, len(spans[0].tokens)
        step = step_of(spans, self._slots, self._kv, advance=advance)
        tokens, positions = inputs_of(spans, self._host.device)
        drafts = advance.drafts(length)
        self.stats.count(advance, log, slots, length)
        logits = self._host.forward(tokens, positions, step, length)
        # the host first: what is interrupted between the two is then known to need clearing
        log.advanced(slots, drafts=drafts)
        log.recurrence.advance(log.cursor, step.slots, log.capacity, drafts=drafts)
        return Decoded(logits.float(), step.convolved & step.advanced, step.appended, step.hidden)
