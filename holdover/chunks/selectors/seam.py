"""HYPIC's seam: a window around every chunk boundary (Liu et al. 2026, as LinearKV §4.4 compares with it)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdover.chunks.selectors.context import Probe, SelectionContext


@dataclass(frozen=True)
class Seam:
    """Tokens next to the boundaries: nearest first up to the ratio's budget, or all within a fixed window.

    A boundary is where a chunk begins after something else. Distance counts positions to either side, the token that
    begins the chunk having 0, the one before it too; of equals, the chunk's own come first. Made for hybrids: HYPIC
    found their attention's deviation concentrated there.

    Attributes:
        window: tokens to each side of a boundary; None lets the ratio decide.
    """

    window: int | None = None
    probe: ClassVar[Probe] = "none"

    def select(self, context: SelectionContext) -> tuple[int, ...]:
        """See `Selector.select`."""
        if not context.seams:
            return ()
        ranked = sorted(
            (*min((p - seam, 0) if p >= seam else (seam - 1 - p, 1) for seam in context.seams), p)
            for p in context.candidates
        )
        if self.window is not None:
            return tuple(sorted(p for distance, _, p in ranked if distance < self.window))
        return tuple(sorted(p for _, _, p in ranked[: context.budget]))
