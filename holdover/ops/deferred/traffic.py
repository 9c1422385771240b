"""Bytes that a decode step moves for the state, by DeltaLog's model (Eq. 8 to 11), and the interval that needs least.

The model counts every byte once: entries of one head that several programs read come from a cache. Beside the paper's
terms it has the keys' fp32 factors and the sharing of keys between value heads. The cumulative decay is the newest
entry's, so the paper's ``2 C_decay`` is not there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdover.ops.deferred.log import LONGEST_INTERVAL, LogLayout


@dataclass(frozen=True)
class Traffic:
    """Bytes of one step of one layer, inputs and outputs (``T_common``) left out."""

    read: float
    written: float

    @property
    def total(self) -> float:
        """Bytes both ways."""
        return self.read + self.written


def state_bytes(layout: LogLayout, batch: int) -> int:
    """``C_state`` of Eq. 8: the base of ``batch`` sequences."""
    return layout.base_dtype.itemsize * batch * layout.heads * layout.d_k * layout.d_v


def dense(layout: LogLayout, batch: int) -> Traffic:
    """Eq. 8: the state is read and written at every step."""
    state = state_bytes(layout, batch)
    return Traffic(state, state)


def deferred(layout: LogLayout, batch: int) -> Traffic:
    """Eq. 9 to 11, averaged over a cycle of M steps: fills of 0 to M - 1 are equally frequent."""
    state, entry = state_bytes(layout, batch), batch * layout.entry_bytes
    interval = layout.merge_interval
    replayed = entry * (interval - 1) / 2
    appended = entry * (interval - 1) / interval
    return Traffic(state + replayed, state / interval + appended)


def at_fill(layout: LogLayout, batch: int, fill: int) -> Traffic:
    """One step on logs that all hold ``fill`` entries; at ``fill == capacity`` it folds.

    Raises:
        ValueError: ``fill`` is not a length that such a log can have.
    """
    if not 0 <= fill <= layout.capacity:
        raise ValueError(f"fill is {fill}, want 0 to {layout.capacity}")
    state, entry = state_bytes(layout, batch), batch * layout.entry_bytes
    return Traffic(state + fill * entry, state if fill == layout.capacity else entry)


def best_interval(layout: LogLayout, longest: int = LONGEST_INTERVAL) -> int:
    """The merge interval, up to ``longest``, that moves the fewest bytes; 1 where the log never pays.

    What ``layout`` says of its own interval does not matter.
    """
    return min(
        range(1, longest + 1), key=lambda interval: deferred(replace(layout, merge_interval=interval), batch=1).total
    )
