"""What errors by layer amount to: curves, their worst layers, whether they rise, and what true inputs leave of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdover.evaluation.chunks.depth import STATE
from holdover.evaluation.protocols.composed.design import EXACT, NONE, Arm, Design
from holdover.evaluation.protocols.composed.run import Errors
from holdover.evaluation.protocols.estimate import Estimate, mean_of, ratio_of, vector
from holdover.evaluation.retention.statistics import spearman

# fewer layers have no trend
_FEWEST = 3


@dataclass(frozen=True)
class Curve:
    """One part of one arm over depth.

    Attributes:
        selector: which tokens were run again.
        ratio: share of the chunks' tokens that it might choose.
        initialiser: which recurrent state prompts began with.
        inputs: of which inputs composed maps were made; see `Source`.
        part: what was compared: ``state``, ``keys``, ``values`` (or latents and rotary keys), ``attended``; of the
            composed state as constructed also ``carried`` and ``injected``.
        layers: by the layer's index, in stack order: relative error, mean over problems with its interval.
        worst: the layer with the largest mean.
        rise: rank correlation of error and depth within a problem, mean over problems with its interval; None where
            there are fewer than three layers, or errors do not differ.
        count: problems.
    """

    selector: str
    ratio: float | None
    initialiser: str
    inputs: str
    part: str
    layers: dict[int, Estimate]
    worst: int
    rise: Estimate | None
    count: int


@dataclass(frozen=True)
class Cause:
    """What is left of exact composition's error at one layer where its maps are made of other inputs.

    Attributes:
        inputs: ``true`` of those in context; ``true-transitions`` and ``true-offsets`` of those for one of the maps.
        layer: the recurrent layer.
        left: sum of the errors over problems, of that with isolated inputs.
        count: problems.
    """

    inputs: str
    layer: int
    left: Estimate
    count: int


def curves(errors: Sequence[Errors], design: Design) -> list[Curve]:
    """A curve for every arm and part."""
    return [_curve(errors, arm, part) for arm in design.compared for part in errors[0][arm.name]]


def causes(errors: Sequence[Errors], design: Design) -> Iterator[Cause]:
    """For every recurrent layer and source; nothing where exact composition was not compared, or is not off."""
    for arm in design.compared:
        if arm.source == "isolated":
            continue
        composed, other = _values(errors, Arm(NONE, EXACT), STATE), _values(errors, arm, STATE)
        for layer, isolated in composed.items():
            if isolated.sum():
                yield Cause(arm.source, layer, ratio_of(other[layer], isolated), len(errors))


def _curve(errors: Sequence[Errors], arm: Arm, part: str) -> Curve:
    values = _values(errors, arm, part)
    layers = {layer: mean_of(one) for layer, one in values.items()}
    return Curve(
        selector=arm.selection.selector,
        ratio=arm.selection.ratio,
        initialiser=arm.initialiser,
        inputs=arm.source,
        part=part,
        layers=layers,
        worst=max(layers, key=lambda layer: layers[layer].mean),
        rise=_rise(torch.stack(list(values.values()), dim=1)),
        count=len(errors),
    )


def _rise(values: Tensor) -> Estimate | None:
    """Of errors ``[problems, layers]``."""
    if values.shape[1] < _FEWEST:
        return None
    order = torch.arange(values.shape[1])
    found = vector([spearman(order, one) for one in values])
    return None if found.isnan().any() else mean_of(found)


def _values(errors: Sequence[Errors], arm: Arm, part: str) -> dict[int, Tensor]:
    """Errors of every problem ``[n]`` by layer."""
    found = [one[arm.name][part] for one in errors]
    return {int(layer): vector([one[layer] for one in found]) for layer in found[0]}
