"""How much smaller a codec makes a checkpoint (DASC Eq. 6, App. B), from the exact bytes of its records."""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdover.arch.layout import StateLayout
from holdover.codec.codec import Codec
from holdover.codec.record import Arrangement
from holdover.retention import Element, RetentionPlan


@dataclass(frozen=True)
class Ratios:
    """Compression ratios of one plan, all relative to the dense checkpoint in the state's own dtypes.

    Attributes:
        c_temp_ragged: temporal state alone, ragged; infinite if nothing is retained.
        c_temp_padded: temporal state alone, padded.
        c_ckpt: whole checkpoint with its conv states, ragged (Eq. 6).
        c_ckpt_padded: the same, padded.
        c_ckpt_int8: the same, ragged with INT8 elements and their scales.
    """

    c_temp_ragged: float
    c_temp_padded: float
    c_ckpt: float
    c_ckpt_padded: float
    c_ckpt_int8: float


def ratios(layout: StateLayout, plan: RetentionPlan) -> Ratios:
    """Compression ratios of a plan.

    Raises:
        PlanError: the plan was made for another layout.
    """

    def record_of(arrangement: Arrangement, element: Element = "full") -> tuple[float, float]:
        codec = Codec(layout, plan, arrangement, element)
        temporal = codec.record.ends[0]
        return layout.temporal_bytes / temporal if temporal else math.inf, layout.checkpoint_bytes / codec.nbytes

    c_temp_ragged, c_ckpt = record_of("ragged")
    c_temp_padded, c_ckpt_padded = record_of("padded")
    return Ratios(c_temp_ragged, c_temp_padded, c_ckpt, c_ckpt_padded, record_of("ragged", "int8")[1])


def usable_slots(budget: int, nbytes: int) -> int:
    """Records of ``nbytes`` that a pool of ``budget`` bytes can hand out, slot 0 reserved (§C.1)."""
    return max(0, budget // nbytes - 1)
