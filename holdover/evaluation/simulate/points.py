"""The operating points that are compared: how checkpoints are kept, and which one leaves first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from holdover.engine.options import EngineOptions
from holdover.prefix.eviction import Eviction
from holdover.retention import Element, RefreshPolicy, RetentionPlan
from holdover.retention.decay import ModelDecay


@dataclass(frozen=True)
class Point:
    """One way to serve.

    Attributes:
        w_max: retention cutoff in tokens; None for dense checkpoints.
        element: how a packed checkpoint stores what it retains.
        refresh: what becomes of omitted units.
        eviction: which checkpoint leaves first.
    """

    w_max: int | None
    element: Element
    refresh: RefreshPolicy
    eviction: Eviction

    @property
    def name(self) -> str:
        """In few words."""
        if self.w_max is None:
            return "dense"
        method = "wr" if self.refresh == "suffix" else "nr"
        return f"{method} {self.w_max}" + ("" if self.element == "full" else f" {self.element}")

    def options(self, base: EngineOptions, decay: ModelDecay) -> EngineOptions:
        """An engine's options that serve so."""
        plan = None if self.w_max is None else RetentionPlan.of(decay, self.w_max)
        return replace(base, plan=plan, element=self.element, refresh=self.refresh, eviction=self.eviction)


def grid(
    cutoffs: Sequence[int],
    elements: Sequence[Element],
    refreshes: Sequence[RefreshPolicy],
    evictions: Sequence[Eviction],
) -> Iterator[Point]:
    """Dense checkpoints and every combination, under every order of eviction."""
    for eviction in evictions:
        yield Point(None, "full", "none", eviction)
        for w_max in cutoffs:
            for element in elements:
                yield from (Point(w_max, element, refresh, eviction) for refresh in refreshes)
