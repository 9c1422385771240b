"""A Holdover server's own counters, from its metrics."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SAMPLE = re.compile(r"^(holdover_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_TIER = re.compile(r'tier="(\w+)"')


@dataclass(frozen=True)
class Counters:
    """One reading.

    Attributes:
        slots: state slots of all tiers.
        states_evicted: checkpoints evicted so far.
        rows_evicted: KV rows evicted so far.
        restores: requests that resumed so far, by tier.
    """

    slots: int
    states_evicted: int
    rows_evicted: int
    restores: dict[str, int]

    def since(self, before: Counters) -> Counters:
        """What was counted after ``before``; slots are as now."""
        return Counters(
            self.slots,
            self.states_evicted - before.states_evicted,
            self.rows_evicted - before.rows_evicted,
            {tier: count - before.restores.get(tier, 0) for tier, count in self.restores.items()},
        )


def read_counters(metrics: str | None) -> Counters | None:
    """Counters from metrics in Prometheus' text format; None if they are not a Holdover server's."""
    samples = [(name, labels or "", float(value)) for name, labels, value in _SAMPLE.findall(metrics or "")]
    if not samples:
        return None

    def total(wanted: str) -> int:
        return int(sum(value for name, _, value in samples if name == wanted))

    restores = {
        tier[1]: int(value)
        for name, labels, value in samples
        if name == "holdover_hits_total" and (tier := _TIER.search(labels))
    }
    return Counters(
        total("holdover_state_slots_capacity"),
        total("holdover_states_evicted_total"),
        total("holdover_rows_evicted_total"),
        restores,
    )
