"""Suffix refresh: recover the omitted units of a restored state by replaying the end of its prefix (DASC-WR, §4.2)."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Tokens

import torch

from holdover.engine.runner import Runner
from holdover.engine.sequence import Sequence
from holdover.engine.stats import EngineStats
from holdover.engine.step import KVMode, Span, StateMode
from holdover.retention import RetentionPlan
from holdover.state import EXACT, Lineage
from holdover.store import LeaseState, StateTiers

logger = logging.getLogger(__name__)


class SuffixRefresh:
    """Replays suffixes in a scratch slot of its own, leased for as long as the engine lives.

    Args:
        runner: the model on its pools.
        tiers: where states live; their codec omits units by ``plan``.
        plan: the retention plan.

    Raises:
        CapacityError: there is no slot for the scratch state.
    """

    def __init__(self, runner: Runner, tiers: StateTiers, plan: RetentionPlan) -> None:
        self._runner = runner
        self._tiers = tiers
        self._plan = plan
        self._scratch = tiers.acquire(LeaseState.LIVE)

    def recover(self, sequence: Sequence, stats: EngineStats) -> tuple[int, float]:
        """Refresh a sequence that has just resumed from a packed checkpoint; tokens replayed, and seconds.

        A failure costs the refresh, not the request: what was restored is whole but for the omitted units, and its
        lineage says so.
        """
        place, start = sequence.place, time.perf_counter()
        depth = sequence.computed
        try:
            rows, rows_lineage = place.rows[:depth], place.hold.node.path_lineage()
            count = self.run(place.lease.slot, sequence.tokens[:depth], rows, rows_lineage)
            place.hold.lineage = self._tiers.native.pool.header(place.lease.slot).lineage
        except Exception:
            logger.exception("omitted units of request %s were not refreshed", sequence.request.id)
            stats.refreshes_failed += 1
            return 0, 0.0
        seconds = time.perf_counter() - start
        stats.refresh_tokens += count
        stats.refresh_seconds += seconds
        return count, seconds

    def run(self, slot: int, tokens: Tokens[int], rows: torch.Tensor, rows_lineage: Lineage = EXACT) -> int:
        """Refresh the omitted units of a slot that was restored from a packed checkpoint of all of ``tokens``.

        The last W_replay tokens (Eq. 7) run from an empty state, while attention reads the cached rows, also inside
        the window; nothing of their keys, values and conv state is kept. Then only the omitted units are copied.
        A replay of all tokens is an ordinary prefill on cached rows: then the whole state is taken, with the rows'
        lineage. Mutates the slot and its lineage.

        Args:
            slot: the live slot.
            tokens: every token that its state has seen.
            rows: the KV row of each, int64.
            rows_lineage: how the rows came to be.

        Returns:
            Tokens replayed; 0 if the plan omits nothing.
        """
        depth = len(tokens)
        window = self._plan.replay_window(depth)
        if window:
            span = Span(self._scratch.slot, tokens[depth - window :], depth - window, rows)
            self._runner.run([span], kv=KVMode.DISCARD, state=StateMode.SCRATCH)
            if window == depth:
                self._tiers.copy_whole(self._scratch.slot, slot, rows_lineage)
            else:
                self._tiers.copy_refreshed(self._scratch.slot, slot)
        return window
