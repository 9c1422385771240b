"""HYPIC's seam: a window around every chunk boundary (Liu et al. 2026, as LinearKV §4.4 compares with it)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

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
        places = torch.tensor(context.candidates)
        distance = _distance(places, torch.tensor(context.seams))
        if self.window is not None:
            return tuple(places[distance < 2 * self.window].tolist())
        # the sort is stable: of equals, the first
        nearest = distance.sort(stable=True).indices[: context.budget]
        return tuple(places[nearest].sort().values.tolist())


def _distance(places: Tensor, seams: Tensor) -> Tensor:
    """Twice the distance to the nearest seam, and 1 more on the side before it; both ascending, int64."""
    behind = torch.searchsorted(seams, places, right=True)
    after = 2 * (places - seams[(behind - 1).clamp_min(0)])
    before = 2 * (seams[behind.clamp_max(len(seams) - 1)] - 1 - places) + 1
    return torch.where(behind == 0, before, torch.where(behind == len(seams), after, torch.minimum(after, before)))
