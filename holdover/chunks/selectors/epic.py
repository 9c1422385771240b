"""EPIC: the first tokens of every chunk, which attend to themselves too much (Hu et al. 2025, LegoLink)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from holdover.chunks.selectors.context import Probe, SelectionContext


@dataclass(frozen=True)
class Epic:
    """The first k tokens of every chunk but one at position 0, with k as large as the ratio allows.

    EPIC fixes k; here the ratio does. What does not divide goes to the earlier chunks, and what short chunks cannot
    take to the longer ones. A hybrid changes nothing in the choice. It does in its effect: a chunk at position 0 needs
    no repair of its KV, but then no recurrent state sees it either, unless the initialiser does.
    """

    probe: ClassVar[Probe] = "none"

    def select(self, context: SelectionContext) -> tuple[int, ...]:
        """See `Selector.select`."""
        seamed = [torch.arange(*placed) for placed in context.assembly.chunks if placed.start]
        if not seamed:
            return ()
        places, offsets = torch.cat(seamed), torch.cat([chunk - chunk[0] for chunk in seamed])
        # the sort is stable: of equal offsets, the earlier chunk's comes first
        first = offsets.sort(stable=True).indices[: context.budget]
        return tuple(places[first].sort().values.tolist())
