"""How long a model's recurrent state lasts, and what its checkpoints weigh at each cutoff (DASC §3.3, §4.1, App. B)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from holdover.arch.layout import StateLayout
from holdover.codec import Codec, Ratios, ratios
from holdover.errors import PlanError
from holdover.retention.decay import ModelDecay
from holdover.retention.horizon import DEFAULT_EPSILON
from holdover.retention.placement import PlacementMode, place
from holdover.retention.plan import RetentionPlan
from holdover.retention.summary import Summary, summarise

RANKS = (1, 2, 4, 8)
MODES: tuple[PlacementMode, ...] = get_args(PlacementMode)
# None where the heads cannot be split over so many ranks
Imbalance = dict[int, dict[PlacementMode, float | None]]


@dataclass(frozen=True, eq=False)
class Window:
    """A model at one cutoff.

    Attributes:
        plan: what is kept.
        summary: its counts.
        ratios: how much smaller checkpoints become.
        nbytes: bytes of one ragged checkpoint.
        nbytes_int8: bytes of one ragged INT8 checkpoint.
        imbalance: stored units of the fullest rank over the mean, by number of ranks and placement mode.
        notes: what kept a placement from being as asked.
    """

    plan: RetentionPlan
    summary: Summary
    ratios: Ratios
    nbytes: int
    nbytes_int8: int
    imbalance: Imbalance
    notes: tuple[str, ...]

    @classmethod
    def of(cls, plan: RetentionPlan, layout: StateLayout, *, quantised: bool = False) -> Window:
        """Account for ``plan``, whose model's linear weights are ``quantised`` or not."""
        imbalance, notes = _imbalance(plan, layout, quantised)
        nbytes, nbytes_int8 = Codec(layout, plan).nbytes, Codec(layout, plan, element="int8").nbytes
        return cls(plan, summarise(plan, layout), ratios(layout, plan), nbytes, nbytes_int8, imbalance, notes)


@dataclass(frozen=True, eq=False)
class RetentionReport:
    """A model's horizons at one gate input, and its checkpoints at several cutoffs.

    Attributes:
        decay: the model's decay parameters.
        windows: one a cutoff, at least one.
    """

    decay: ModelDecay
    windows: tuple[Window, ...]

    @classmethod
    def of(
        cls,
        decay: ModelDecay,
        cutoffs: Sequence[int],
        *,
        gate_input: float | None = None,
        epsilon: float = DEFAULT_EPSILON,
        quantised: bool = False,
    ) -> RetentionReport:
        """Report on a model.

        Args:
            decay: its decay parameters.
            cutoffs: retention cutoffs W_max in tokens, at least one.
            gate_input: representative gate input a_s; the default of the gate's form if None.
            epsilon: what is left of a unit after one horizon.
            quantised: whether its linear weights are quantised.

        Raises:
            PlanError: a number is out of range, or the parameters are damaged.
        """
        plans = [RetentionPlan.of(decay, cutoff, gate_input=gate_input, epsilon=epsilon) for cutoff in cutoffs]
        windows = tuple(Window.of(plan, decay.layout.state, quantised=quantised) for plan in plans)
        return cls(decay, windows)

    @property
    def plan(self) -> RetentionPlan:
        """Any of the plans: they have the same horizons, gate, gate input and epsilon."""
        return self.windows[0].plan

    @property
    def calibrated(self) -> bool:
        """Whether the gate input was validated on models of this architecture."""
        return not calibration_note(self.decay, self.plan.gate_input)

    @property
    def notes(self) -> list[str]:
        """What a reader must know to read the figures, each once."""
        notes = [note for window in self.windows for note in window.notes]
        return list(dict.fromkeys(filter(None, [*notes, calibration_note(self.decay, self.plan.gate_input)])))


def calibration_note(decay: ModelDecay, gate_input: float) -> str:
    """Why horizons at ``gate_input`` are a guess; empty if it was validated on models of this architecture."""
    if decay.calibrated and gate_input == decay.gate_input:
        return ""
    return f"uncalibrated: the gate input a_s = {gate_input:g} was not validated on {decay.architecture} models"


def retention_facts(report: RetentionReport, *, full: bool = False) -> dict[str, Any]:
    """The report as JSON; null stands for a ratio that is infinite and for a split that is not possible.

    Args:
        report: a report.
        full: also list every unit's horizon in tokens, one list a recurrent layer, in stack order.
    """
    plan = report.plan
    facts: dict[str, Any] = {
        "fingerprint": report.decay.fingerprint,
        "gate": {"form": plan.gate, "input": plan.gate_input, "epsilon": plan.epsilon, "calibrated": report.calibrated},
        "windows": [_window_facts(window) for window in report.windows],
        "notes": report.notes,
    }
    if full:
        facts["horizons"] = [horizons.tolist() for horizons in plan.horizons]
    return facts


def _window_facts(window: Window) -> dict[str, Any]:
    summary = window.summary
    least, most = summary.layer_range
    return {
        "w_max": summary.w_max,
        "retained": summary.retained,
        "retained_fraction": summary.retained_fraction,
        "r_mean": summary.r_mean,
        "r_max": summary.r_max,
        "mixed_pairs": summary.mixed_pairs,
        "layer_fraction": {"min": least, "max": most},
        **{name: value if math.isfinite(value) else None for name, value in asdict(window.ratios).items()},
        "checkpoint_bytes": window.nbytes,
        "checkpoint_bytes_int8": window.nbytes_int8,
        "tp": {str(ranks): dict(modes) for ranks, modes in window.imbalance.items()},
    }


def _imbalance(plan: RetentionPlan, layout: StateLayout, quantised: bool) -> tuple[Imbalance, tuple[str, ...]]:
    """Imbalance by ranks and mode, and the notes of the placements."""
    imbalance: Imbalance = {}
    notes: dict[str, None] = {}
    for ranks in RANKS:
        imbalance[ranks] = {}
        for mode in MODES:
            try:
                placement = place(plan, layout, ranks, mode, quantised=quantised)
            except PlanError as error:
                imbalance[ranks][mode] = None
                notes[str(error)] = None
                continue
            imbalance[ranks][mode] = placement.imbalance
            if placement.note:
                notes[f"{mode} at TP {ranks} is {placement.mode}: {placement.note}"] = None
    return imbalance, tuple(notes)
