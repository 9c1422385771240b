"""A Holdover server's own counters, from its metrics."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_SAMPLE = re.compile(r"^(holdover_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_TIER = re.compile(r'tier="(\w+)"')
_POOL = re.compile(r'pool="(\w+)"')


@dataclass(frozen=True)
class Counters:
    """One reading.

    Attributes:
        slots: state slots of all tiers.
        slots_of: state slots of each tier.
        resident: checkpoints that each tier holds now.
        pool_bytes: bytes of each pool.
        states_evicted: checkpoints evicted so far.
        rows_evicted: KV rows evicted so far.
        restores: requests that resumed so far, by tier.
    """

    slots: int
    slots_of: dict[str, int]
    resident: dict[str, int]
    pool_bytes: dict[str, int]
    states_evicted: int
    rows_evicted: int
    restores: dict[str, int]

    def since(self, before: Counters) -> Counters:
        """What was counted after ``before``; slots, checkpoints and bytes are as now."""
        return replace(
            self,
            states_evicted=self.states_evicted - before.states_evicted,
            rows_evicted=self.rows_evicted - before.rows_evicted,
            restores={tier: count - before.restores.get(tier, 0) for tier, count in self.restores.items()},
        )


def read_counters(metrics: str | None) -> Counters | None:
    """Counters from metrics in Prometheus' text format; None if they are not a Holdover server's."""
    samples = [(name, labels or "", float(value)) for name, labels, value in _SAMPLE.findall(metrics or "")]
    if not samples:
        return None

    def total(wanted: str) -> int:
        return int(sum(value for name, _, value in samples if name == wanted))

    def by(label: re.Pattern[str], wanted: str, *, state: str = "") -> dict[str, int]:
        return {
            found[1]: int(value)
            for name, labels, value in samples
            if name == wanted and (not state or f'state="{state}"' in labels) and (found := label.search(labels))
        }

    return Counters(
        slots=total("holdover_state_slots_capacity"),
        slots_of=by(_TIER, "holdover_state_slots_capacity"),
        resident=by(_TIER, "holdover_state_slots", state="cached"),
        pool_bytes=by(_POOL, "holdover_pool_bytes"),
        states_evicted=total("holdover_states_evicted_total"),
        rows_evicted=total("holdover_rows_evicted_total"),
        restores=by(_TIER, "holdover_hits_total"),
    )
