"""The quality gate: what a plan was measured to cost, before anyone serves with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RefreshPolicy = Literal["none", "suffix"]
Element = Literal["full", "bfloat16", "int8"]


@dataclass(frozen=True)
class OperatingPoint:
    """One measured way to restore checkpoints.

    Attributes:
        w_max: retention cutoff in tokens.
        refresh: ``none`` (omitted units stay zero) or ``suffix`` (they are replayed).
        element: how a retained element is stored; ``full`` is the state's own dtype.
        mean_kl: mean per-token KL from the exact distribution, in nats.
        p95_kl: its 95th percentile over continuations' tokens.
        first_kl: mean KL at the first token after the resume, where what was omitted is missed most.
        worst_layer_error: largest over layers of the relative error of the restored state.
        checkpoint_bytes: bytes of one checkpoint.
        restore_ms: median time to restore one, its refresh included.
    """

    w_max: int
    refresh: RefreshPolicy
    element: Element
    mean_kl: float
    p95_kl: float
    first_kl: float
    worst_layer_error: float
    checkpoint_bytes: int
    restore_ms: float


@dataclass(frozen=True)
class QualityGate:
    """What calibration found on real text.

    Attributes:
        model_digest: digest of all the weights that were measured.
        text_digest: digest of the text.
        budget: largest acceptable P95 KL, in nats.
        continuations: resumed continuations measured.
        tokens: tokens of each.
        chosen: the operating point that the plan is for.
        sweep: every point measured.
    """

    model_digest: str
    text_digest: str
    budget: float
    continuations: int
    tokens: int
    chosen: OperatingPoint
    sweep: tuple[OperatingPoint, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the chosen point meets the budget."""
        return self.chosen.p95_kl <= self.budget
