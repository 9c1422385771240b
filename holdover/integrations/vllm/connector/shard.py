"""One rank's part of a state and of a plan, as vLLM's tensor parallelism cuts them: the r-th part of the heads.

A rank packs what it computes; nothing is moved between ranks to even out what they store (DASC §4.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from holdover.arch.layout import RecurrentLayer, StateLayout
from holdover.errors import ConfigError
from holdover.retention import RetentionPlan


def shard_layout(layout: StateLayout, ranks: int) -> StateLayout:
    """The state of any one of ``ranks`` ranks; they all have the same shape.

    Raises:
        ConfigError: the ranks cannot share a layer's heads equally.
    """
    return replace(layout, layers=tuple(_shard_layer(layer, ranks) for layer in layout.layers))


def shard_plan(plan: RetentionPlan, layout: StateLayout, rank: int, ranks: int) -> RetentionPlan:
    """The plan of one rank's heads. Its quality gate is the whole plan's.

    Args:
        plan: of the whole model.
        layout: one rank's state.
        rank: whose plan.
        ranks: how many there are.
    """
    horizons, retained = (_part(units, rank, ranks) for units in (plan.horizons, plan.retained))
    return replace(plan, layout=layout.shape_digest, horizons=horizons, retained=retained)


def _shard_layer(layer: RecurrentLayer, ranks: int) -> RecurrentLayer:
    if layer.heads % ranks or layer.key_heads % ranks:
        raise ConfigError(
            f"{ranks} ranks cannot share the {layer.heads} heads and {layer.key_heads} key heads of layer "
            f"{layer.index} equally: choose another --tensor-parallel-size"
        )
    heads, key_heads, channels = layer.heads // ranks, layer.key_heads // ranks, layer.conv_channels // ranks
    return replace(layer, heads=heads, key_heads=key_heads, conv_channels=channels)


def _part(units: Sequence[Tensor], rank: int, ranks: int) -> tuple[Tensor, ...]:
    """Units are numbered head by head, so a rank's heads are one slice of them."""
    return tuple(layer.chunk(ranks)[rank].clone() for layer in units)
