"""Placements, plans and models that are run on two ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdover.engine.engine import Engine
from holdover.engine.request import Output
from holdover.retention.placement import PlacementMode
from tests.parallel import script
from tests.parallel.models import FAMILIES

# by hand: a share of free memory would not be the same twice
SIZES: dict[str, Any] = {"state_budget": 16 << 20, "kv_budget": 4 << 20, "chunk_size": 16, "poison": True}
# packed at any depth: prompts here are shorter than what keeps a checkpoint dense
_PACKED = {"packed_above": 0, "native_slots": 6, "packed_slots": 8, "dense_spill": False}
_TIGHT = {"native_slots": 4, "packed_slots": 3, "max_running": 3, "packed_above": 0}
MODES: tuple[PlacementMode, ...] = ("off", "storage", "hybrid")


@dataclass(frozen=True)
class Case:
    """One engine and what is asked of it.

    Attributes:
        name: as tests print it.
        model: a row of `models`.
        mode: placement that is asked for.
        run: what is asked.
        is_planned: whether checkpoints are packed by a plan.
        options: further options of the engine.
    """

    name: str
    model: str
    mode: PlacementMode
    run: Callable[[Engine], list[Output]]
    is_planned: bool = True
    options: dict[str, Any] = field(default_factory=dict)


def _cases() -> list[Case]:
    cases = []
    for model in FAMILIES:
        cases.append(Case(f"{model}-dense", model, "off", script.conversation, is_planned=False))
        for mode in MODES:
            for refresh in ("none", "suffix"):
                options = {**_PACKED, "refresh": refresh}
                cases.append(Case(f"{model}-{mode}-{refresh}", model, mode, script.conversation, options=options))
    first = FAMILIES[0]
    int8 = {**_PACKED, "element": "int8"}
    cases.append(Case("int8-storage", FAMILIES[1], "storage", script.conversation, options=int8))
    cases.append(Case("int8-unplanned", first, "off", script.conversation, is_planned=False, options=int8))
    drafts = {"speculate": "ngram", "merge_interval": 6}
    cases.append(Case("drafts", first, "hybrid", script.conversation, options={**_PACKED, **drafts}))
    tight = {**_TIGHT, "refresh": "suffix", "eviction": "cost", "kv_budget": 150_000}
    cases.append(Case("pressure", first, "hybrid", script.pressure, options=tight))
    return cases


CASES = _cases()
