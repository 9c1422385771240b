"""Recompute everything: a full prefill by the way of a repair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdover.chunks.selectors.context import Probe, SelectionContext


@dataclass(frozen=True)
class All:
    """Every token, whatever the ratio: the upper bound (r = 1).

    On an attention-only model that is a prefill by itself. A hybrid's recurrent layers must begin from the empty state
    and an empty conv window, or they see the chunks twice: `Repair.is_full` says so to whoever initialises.
    """

    probe: ClassVar[Probe] = "none"

    def select(self, context: SelectionContext) -> tuple[int, ...]:
        """See `Selector.select`."""
        return context.candidates
