"""Decode as plain calls, on any device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from holdover.engine.decode.decoder import Decoded, DecodeStats
from holdover.engine.host import Host
from holdover.engine.step import Advance, Span, Step
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
        device, length = self._host.device, len(spans[0].tokens)
        slots, log = [span.slot for span in spans], self._log
        rows = [span.rows.to(device) for span in spans]
        step = Step(
            slot_pool=self._slots,
            kv_pool=self._kv,
            slots=log.index(slots),
            rows=rows,
            new_rows=torch.cat([r[-length:] for r in rows]),
            advance=advance,
        )
        tokens = torch.tensor([list(span.tokens) for span in spans], device=device)
        starts = torch.tensor([[span.start] for span in spans], device=device)
        self.stats.count(advance, log, slots, length)
        logits = self._host.forward(tokens, starts + torch.arange(length, device=device), step, length)
        drafts = length if advance is Advance.DRAFT else None
        # the host first: what is interrupted between the two is then known to need clearing
        log.advanced(slots, drafts=drafts)
        log.recurrence.advance(log.cursor, step.slots, log.capacity, drafts=drafts)
        return Decoded(logits.float(), step.convolved & step.advanced, step.appended, step.hidden)
