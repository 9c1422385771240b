"""A retention plan: which units of a model's recurrent state a checkpoint keeps, decided once, from the weights.

DASC §4.1: a unit is retained when its static retention horizon exceeds the cutoff ``w_max``; the mask is independent
of requests. §4.2, Eq. 7: how long a suffix refreshes what was omitted.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import torch

from holdover.arch.layout import GateForm, StateLayout
from holdover.errors import PlanError
from holdover.retention.decay import ModelDecay
from holdover.retention.horizon import DEFAULT_EPSILON
from holdover.retention.quality import QualityGate

# Eq. 7: the shortest window that is replayed
_SHORTEST_WINDOW = 4
_LONGEST_WINDOW = 2**31 - 1


@dataclass(frozen=True, eq=False)
class RetentionPlan:
    """Masks of one model at one cutoff. Two plans are the same when their `digest` is.

    Tensors are on CPU. PlanError is raised for tensors or a cutoff that no plan can have.

    Attributes:
        model: fingerprint of the model (configuration, headers, decay parameters).
        layout: `StateLayout.shape_digest` of its state.
        w_max: retention cutoff in tokens (W_max), at least 4.
        gate: form of the decay gate.
        gate_input: representative gate input a_s.
        epsilon: what is left of a unit after one horizon.
        horizons: static horizon of every unit in tokens, float32 ``[units]`` per recurrent layer, in stack order.
        retained: whether a unit is kept, bool ``[units]`` per recurrent layer.
        selection: ``horizon``, or ``random(seed)`` for a count-matched control.
        quality: the recorded quality gate, or None.
    """

    model: str
    layout: str
    w_max: int
    gate: GateForm
    gate_input: float
    epsilon: float
    horizons: tuple[torch.Tensor, ...]
    retained: tuple[torch.Tensor, ...]
    selection: str = "horizon"
    quality: QualityGate | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.w_max, int) or not _SHORTEST_WINDOW <= self.w_max <= _LONGEST_WINDOW:
            raise PlanError(f"w_max is {self.w_max}; wanted {_SHORTEST_WINDOW} to {_LONGEST_WINDOW} tokens")
        if len(self.horizons) != len(self.retained) or not all(map(_is_mask_of, self.retained, self.horizons)):
            raise PlanError("a plan needs a float32 horizon and a bool mask element for every unit of every layer")

    @classmethod
    def of(
        cls, decay: ModelDecay, w_max: int, *, gate_input: float | None = None, epsilon: float = DEFAULT_EPSILON
    ) -> RetentionPlan:
        """The plan of a model, from its decay parameters.

        Args:
            decay: those parameters.
            w_max: retention cutoff in tokens.
            gate_input: representative gate input a_s; the default of the gate's form if None.
            epsilon: what is left of a unit after one horizon.

        Raises:
            PlanError: a number is out of range, or the parameters are damaged.
        """
        a_s = decay.gate_input if gate_input is None else gate_input
        return cls.select(
            decay.horizons(a_s, epsilon),
            w_max,
            model=decay.fingerprint,
            layout=decay.layout.state,
            gate=decay.gate.form,
            gate_input=a_s,
            epsilon=epsilon,
        )

    @classmethod
    def select(
        cls,
        horizons: Sequence[torch.Tensor],
        w_max: int,
        *,
        model: str,
        layout: StateLayout,
        gate: GateForm,
        gate_input: float,
        epsilon: float,
    ) -> RetentionPlan:
        """Retain the units whose horizon exceeds ``w_max`` (§4.1).

        Raises:
            PlanError: ``w_max`` is below 4, or the horizons are not one number per unit of the layout.
        """
        if tuple(len(x) for x in horizons) != layout.units_per_layer:
            raise PlanError(f"horizons of {[len(x) for x in horizons]} units for layers of {layout.units_per_layer}")
        kept = tuple(x.float() for x in horizons)
        if not w_max <= _LONGEST_WINDOW:
            raise PlanError(f"w_max is {w_max}; wanted at most {_LONGEST_WINDOW} tokens")
        if any(bool(x.isnan().any()) for x in kept):
            raise PlanError("a horizon is not a number: the model's decay parameters are damaged")
        masks = tuple(x > w_max for x in kept)
        return cls(model, layout.shape_digest, w_max, gate, gate_input, epsilon, kept, masks)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Retained units of each layer (r_l)."""
        return tuple(int(mask.sum()) for mask in self.retained)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """First retained unit of each layer in the ragged order, and their number at the end (o_0 .. o_L)."""
        return (0, *accumulate(self.counts))

    @property
    def units(self) -> int:
        """Units of all layers."""
        return sum(len(mask) for mask in self.retained)

    @property
    def omits_nothing(self) -> bool:
        """Whether every unit is retained."""
        return self.offsets[-1] == self.units

    def replay_window(self, prefix: int) -> int:
        """Tokens to replay for the omitted units of a prefix of ``prefix`` tokens (W_replay, Eq. 7); 0 for none."""
        windows = [
            self.unit_window(float(horizons[~mask].max()))
            for horizons, mask in zip(self.horizons, self.retained, strict=True)
            if not bool(mask.all())
        ]
        return min(prefix, max(windows, default=0))

    def unit_window(self, horizon: float) -> int:
        """Tokens that refresh a unit of ``horizon`` tokens (W_u, Eq. 7)."""
        if not horizon < self.w_max:
            return self.w_max
        power = 2 ** math.ceil(math.log2(horizon)) if horizon > 0 else _SHORTEST_WINDOW
        return min(max(power, _SHORTEST_WINDOW), self.w_max)

    def random_like(self, seed: int) -> RetentionPlan:
        """The count-matched control: as many units of each layer, drawn uniformly (§5.2). It has no quality gate."""
        generator = torch.Generator().manual_seed(seed)
        masks = []
        for mask, count in zip(self.retained, self.counts, strict=True):
            drawn = torch.zeros_like(mask)
            drawn[torch.randperm(len(mask), generator=generator)[:count]] = True
            masks.append(drawn)
        return replace(self, retained=tuple(masks), selection=f"random({seed})", quality=None)

    @cached_property
    def digest(self) -> str:
        """Hex digest of everything that decides which bytes a checkpoint keeps; the quality gate is not part of it."""
        facts = (
            self.model,
            self.layout,
            self.w_max,
            self.gate,
            self.gate_input,
            self.epsilon,
            self.selection,
            [len(mask) for mask in self.retained],
        )
        digest = hashlib.sha256(json.dumps(facts).encode())
        for horizons, mask in zip(self.horizons, self.retained, strict=True):
            digest.update(horizons.contiguous().numpy().tobytes())
            digest.update(mask.contiguous().numpy().tobytes())
        return digest.hexdigest()[:32]

    def check_fits(self, model: str, layout: StateLayout) -> None:
        """Verify that the plan was made for a model.

        Args:
            model: the model's fingerprint.
            layout: its state.

        Raises:
            PlanError: it was made for other weights or another layout.
        """
        if self.layout != layout.shape_digest:
            raise PlanError("the plan was made for another layout of recurrent state: make one with holdover plan")
        if tuple(len(mask) for mask in self.retained) != layout.units_per_layer:
            raise PlanError("the plan's masks are not one entry a unit of this layout: make one with holdover plan")
        if self.model != model:
            raise PlanError("the plan was made for another model's weights: make one with holdover plan")


def _is_mask_of(mask: torch.Tensor, horizons: torch.Tensor) -> bool:
    """Whether the two are a layer's mask and horizons: vectors of the same units."""
    types = (horizons.dtype, mask.dtype) == (torch.float32, torch.bool)
    return types and horizons.ndim == 1 and horizons.shape == mask.shape
