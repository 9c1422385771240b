"""Cuts the recurrent mixers of a loaded model down to the heads of one rank, before they are placed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from holdover.arch.architecture import Architecture
from holdover.arch.layout import RecurrentLayer, StateLayout
from holdover.engine.hf.mixers import MIXERS
from holdover.engine.parallel.shard import Shard
from holdover.retention.coupled import permute_coupled

# sizes that linear layers keep beside their weights, by axis
_SIZES = ("out_features", "in_features")


def cut_model(model: nn.Module, architecture: Architecture, whole: StateLayout, shard: Shard) -> None:
    """Give every recurrent layer the parameters of this rank's heads, in the placement's order. Mutates the model.

    Args:
        model: as it was loaded, its mixers not replaced yet.
        architecture: says what is coupled to heads.
        whole: the whole model's recurrent state.
        shard: this rank's heads.

    Raises:
        PlanError: what is coupled to heads is not declared, or a parameter is missing or quantised.
        WeightsError: a layer's parameters are not found.
    """
    parameters = dict(model.named_parameters())
    mixers: dict[int, Any] = {int(m.layer_idx): m for m in model.modules() if type(m).__name__ in MIXERS}  # type: ignore[arg-type]
    local = shard.cut_state(whole)
    for layer, part, heads in zip(whole.layers, local.layers, shard.heads, strict=True):
        prefix = architecture.prefix(layer.index, parameters, "loaded")
        _cut_layer(model, prefix, parameters, architecture, layer, heads)
        module = mixers[layer.index]
        # the heads of a single group are never all on one rank
        spanning = shard.ranks.sum if layer.key_heads == 1 else None
        MIXERS[type(module).__name__].resize(module, part, spanning)
    if shard.ranks.rank:
        _drop_output_biases(mixers.values())


def _cut_layer(
    model: nn.Module,
    prefix: str,
    parameters: Mapping[str, nn.Parameter],
    architecture: Architecture,
    layer: RecurrentLayer,
    heads: torch.Tensor,
) -> None:
    own = {name.removeprefix(prefix): p.data for name, p in parameters.items() if name.startswith(prefix)}
    cut = permute_coupled(own, architecture, layer, heads, form="loaded")
    for coupled in architecture.coupled_in("loaded"):
        if coupled.name not in own:
            continue
        path, _, leaf = f"{prefix}{coupled.name}".rpartition(".")
        module = model.get_submodule(path)
        # an object of its own: the whole tensor is given back
        setattr(module, leaf, nn.Parameter(cut[coupled.name].clone(), requires_grad=False))
        if isinstance(module, nn.Linear) and leaf == "weight":
            setattr(module, _SIZES[coupled.axis], cut[coupled.name].shape[coupled.axis])


def _drop_output_biases(mixers: Iterable[Any]) -> None:
    """Outputs are summed over ranks, so that one rank alone may add the bias."""
    for mixer in mixers:
        output = getattr(mixer, "out_proj", None) or mixer.o_proj
        if output.bias is not None:
            output.bias.data.zero_()
