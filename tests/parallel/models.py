"""Tiny random models, whole and cut to one rank's part."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from holdover.arch.registry import ARCHITECTURES, layout_from_config
from holdover.engine.hf.host import HostModel
from holdover.engine.hf.loader import Loaded
from holdover.engine.hf.sharding import cut_model
from holdover.engine.parallel.ranks import Ranks
from holdover.engine.parallel.shard import Shard
from holdover.retention import RetentionPlan
from holdover.retention.placement import PlacementMode
from tests.arch import table
from tests.codec.build import plan_of
from tests.engine.harness import loaded_of
from tests.engine.small import SMALL, build_small

# one of each recurrence, and what else parameters are coupled by
FAMILIES = tuple(SMALL)
ONE_GROUP = {"granite-one-group": "granite_hybrid", "falcon-one-group": "falcon_h1", "falcon-gated-last": "falcon_h1"}
ARCHITECTURE_ROWS = ("qwen3_next_moe", "olmo_hybrid", "bailing_hybrid_moe", "nemotron_h_moe", "zamba2", "falcon_h1")


def build(name: str) -> PreTrainedModel:
    """A random model; the same each time."""
    if name in SMALL:
        return build_small(name)
    if name not in ONE_GROUP:
        return table.build_model(name)
    config = table.ARCHITECTURES[ONE_GROUP[name]]()
    config.mamba_n_groups = 1
    if name.startswith("falcon"):
        config.mamba_rms_norm, config.mamba_norm_before_gate = True, name == "falcon-gated-last"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = table.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        table._randomise(model)
    return model.eval()


@cache
def whole(name: str) -> HostModel:
    model = build(name)
    return HostModel(model, layout_from_config(model.config.to_dict(), dtype="float32"))


def plan_for(name: str) -> RetentionPlan:
    """Most of what it retains is in the first half of every layer's heads, so that ranks have something to move."""
    state = layout_from_config(build(name).config.to_dict(), dtype="float32").state
    draw = torch.Generator().manual_seed(1)

    def mask(units: int) -> Tensor:
        share = torch.where(torch.arange(units) < units // 2, 0.9, 0.4)
        return torch.rand(units, generator=draw) < share

    return plan_of(state, [mask(units) for units in state.units_per_layer])


def cut(name: str, ranks: Ranks, plan: RetentionPlan | None, mode: PlacementMode) -> tuple[HostModel, Shard]:
    """One rank's part, as the loader makes it."""
    model = build(name)
    layout = layout_from_config(model.config.to_dict(), dtype="float32")
    shard = Shard.of(layout.state, ranks, plan, mode)
    cut_model(model, ARCHITECTURES[layout.architecture], layout.state, shard)
    return HostModel(model, shard.cut(layout), ranks.sum), shard


def loaded(host: Any, shard: Shard | None) -> Loaded:
    """What the loader would give, without files."""
    return replace(loaded_of(FAMILIES[0]), host=host, shard=shard)
