"""Recompute nothing: naive reuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdover.chunks.selectors.context import Probe, SelectionContext


@dataclass(frozen=True)
class Nothing:
    """No token, whatever the ratio: the lower bound (r = 0). A hybrid changes nothing."""

    probe: ClassVar[Probe] = "none"

    def select(self, context: SelectionContext) -> tuple[int, ...]:
        """See `Selector.select`."""
        return ()
