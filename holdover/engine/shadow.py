"""Shadow check: a sampled share of approximate hits is computed again exactly, and the two answers are compared.

The exact run is an ordinary request of one token that may only resume from exact states, so it is scheduled like any
other, and what it computes replaces approximate rows and states in the cache. At most two are under way at a time.

The gate bounds the 95th percentile of the KL, so one answer in twenty may lie above it. The check trips when so many do
that a plan which meets its gate would hardly ever show them: more than three standard deviations beyond that share.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
from dataclasses import dataclass, field, replace

import torch

from holdover.engine.request import Update
from holdover.engine.sampling import SamplingParams
from holdover.engine.sequence import Sequence

logger = logging.getLogger(__name__)

# share of answers that may lie above a bound on the 95th percentile
_ALLOWED = 0.05
_MOST_PENDING = 2


@dataclass
class ShadowStats:
    """What shadow runs have found.

    Attributes:
        checked: approximate hits whose exact answer was computed.
        kl_sum: sum of their KL divergences in nats, exact to approximate, at the first generated token.
        kl_max: the largest of them.
        skipped: chosen hits that were not checked because enough checks were under way.
        over_gate: how many were above the gate.
        tripped: whether the gate was found not to hold.
    """

    checked: int = 0
    kl_sum: float = 0.0
    kl_max: float = 0.0
    skipped: int = 0
    over_gate: int = 0
    tripped: bool = False


@dataclass
class ShadowCheck:
    """Chooses hits to check and judges them.

    Attributes:
        share: fraction of approximate hits to check, 0 to 1.
        gate: P95 of the KL in nats beyond which approximate states are not resumed any more; None to measure only.
        least: checks before anything is concluded.
        stats: what was found.
    """

    share: float
    gate: float | None = None
    least: int = 20
    stats: ShadowStats = field(default_factory=ShadowStats)
    # log-probabilities by the id of the shadow that is to compute them exactly
    _approximate: dict[str, torch.Tensor] = field(default_factory=dict)
    _ids: set[str] = field(default_factory=set)
    _random: random.Random = field(default_factory=lambda: random.Random(0))
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def sample(self, sequence: Sequence, logits: torch.Tensor) -> Sequence | None:
        """A shadow of a sequence that has just computed its prompt from an approximate state, if it is chosen.

        Args:
            sequence: the sequence.
            logits: of its first token, ``[vocabulary]``.
        """
        if sequence.place.hold.lineage.is_exact or self._random.random() >= self.share:
            return None
        if len(self._ids) >= _MOST_PENDING:
            self.stats.skipped += 1
            return None
        request_id = f"{sequence.request.id}/shadow-{next(self._numbers)}"
        self._ids.add(request_id)
        params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        request = replace(sequence.request, id=request_id, params=params, exact=True, boundaries=(), checkpoint_at=())
        self._approximate[request_id] = logits.float().log_softmax(-1).cpu()
        return sequence.shadow(request)

    def judge(self, sequence: Sequence, logits: torch.Tensor) -> None:
        """Compare what a shadow computed with what it shadows. Ignores other sequences."""
        approximate = self._approximate.pop(sequence.request.id, None)
        if approximate is None:
            return
        exact = logits.float().log_softmax(-1).cpu()
        kl = float((exact.exp() * (exact - approximate)).sum())
        self.stats.checked += 1
        self.stats.kl_sum += kl
        self.stats.kl_max = max(self.stats.kl_max, kl)
        if self.gate is not None:
            self.stats.over_gate += not kl <= self.gate
            self._conclude(self.gate)

    def _conclude(self, gate: float) -> None:
        checked, over = self.stats.checked, self.stats.over_gate
        expected = _ALLOWED * checked
        if self.stats.tripped or checked < self.least or over <= expected + 3 * math.sqrt(expected * (1 - _ALLOWED)):
            return
        self.stats.tripped = True
        logger.error("shadow check: KL above the gate of %.3g in %d of %d hits: exact from now on", gate, over, checked)

    def hide(self, updates: list[Update]) -> list[Update]:
        """Updates without those of shadows, which nobody waits for."""
        for update in updates:
            if update.output is not None and update.request_id in self._ids:
                # one that ended without an answer leaves nothing behind either
                self._approximate.pop(update.request_id, None)
        shown = [update for update in updates if update.request_id not in self._ids]
        self._ids -= {update.request_id for update in updates if update.output is not None}
        return shown
