"""Models of published shapes whose units have the horizons that a test wants."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from holdover.arch.architecture import Gate
from holdover.arch.layout import ModelLayout, RecurrentLayer
from holdover.arch.registry import layout_from_config
from holdover.retention.decay import LayerDecay, ModelDecay
from holdover.retention.horizon import DEFAULT_EPSILON, DEFAULT_GATE_INPUT
from tests.arch.fixtures import published


def model_of(fixture: str, horizons: Callable[[RecurrentLayer], torch.Tensor]) -> ModelDecay:
    """The published model ``fixture``, which has a softplus gate, with the ``horizons`` of each layer, ``[units]``."""
    return model_with(layout_from_config(published(fixture)), horizons)


def model_with(layout: ModelLayout, horizons: Callable[[RecurrentLayer], torch.Tensor]) -> ModelDecay:
    """A model of this layout and a softplus gate with the ``horizons`` of each layer, ``[units]``."""
    layers = tuple(LayerDecay(torch.zeros(layer.heads), _bias(horizons(layer))) for layer in layout.state.layers)
    return ModelDecay(layout.architecture, layout, Gate(), "fingerprint", layers)


def kept(layer: RecurrentLayer, count: int, *, seed: int = 0) -> torch.Tensor:
    """Horizons of 1,000 tokens for ``count`` random units of a layer, of 2 for the others."""
    order = torch.randperm(layer.units, generator=torch.Generator().manual_seed(seed + layer.index))
    return torch.where(order < count, 1000.0, 2.0)


def _bias(horizons: torch.Tensor) -> torch.Tensor:
    """The bias that gives these horizons where ``A_log`` is 0: Eq. 2 and 3, solved for it."""
    rates = -math.log(DEFAULT_EPSILON) / horizons.double()
    return rates.expm1().log() - DEFAULT_GATE_INPUT["softplus"]
