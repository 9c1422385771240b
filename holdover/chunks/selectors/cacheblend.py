"""CacheBlend: the tokens whose cached values differ most from those in context (Yao et al. 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdover.chunks.selectors.context import Probe, SelectionContext


@dataclass(frozen=True)
class CacheBlend:
    """Highest squared distance between cached and computed values at one early layer, as its authors' code has it.

    Values, not keys: they carry no position. For latent attention the latents, which values are made from.

    On an attention-only model the layer is the second one: the first one's values depend on nothing but the token, and
    two layers of the whole context are cheap. In a hybrid, the layers below the first attention layer are recurrent
    and mix tokens already, so that layer itself deviates (where the first layer has both, as in Falcon-H1, it is the
    second one again); but the probe runs the whole context through all of them, in
    order and from the empty state, which costs their share of a full prefill.
    """

    probe: ClassVar[Probe] = "context"

    def select(self, context: SelectionContext) -> tuple[int, ...]:
        """See `Selector.select`."""
        if context.deviation is None:
            raise ValueError("CacheBlend needs the deviation that a context probe finds")
        cached, fresh = context.deviation
        return context.highest((fresh.float() - cached.float()).square().flatten(1).sum(1))
