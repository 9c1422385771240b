"""Checkpoints with a published model's configuration and decay tensors, and little else, under the published names."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from holdover.arch.registry import architecture_of, layout_from_config
from tests.arch.fixtures import published

# between two decay tensors of a file, so that they are not read in one go by chance
FILLER = 40_000
SHARDS = 3


def write_checkpoint(path: Path, fixture: str, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Path:
    """Write the configuration of ``fixture`` with random decay tensors of its full size over three shards."""
    config = published(fixture)
    layout, architecture = layout_from_config(config), architecture_of(config)
    random = torch.Generator().manual_seed(seed)
    shards: list[dict[str, torch.Tensor]] = [{} for _ in range(SHARDS)]
    for layer in layout.state.layers:
        names = architecture.published.under(architecture.prefixes[0].format(i=layer.index))
        shard = shards[layer.index * SHARDS // layout.num_layers]
        shard[names.dt_bias] = torch.empty(layer.units).uniform_(-7, 2, generator=random).to(dtype)
        # sorted between the two
        shard[f"{names.dt_bias[:-7]}b_filler"] = torch.zeros(FILLER, dtype=dtype)
        if names.a_log is not None:
            shard[names.a_log] = _a_log(fixture, layer.heads, random).to(dtype)
    weight_map = {}
    path.mkdir(parents=True, exist_ok=True)
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{SHARDS:05d}.safetensors"
        save_file({**shard, f"filler.{number}": torch.zeros(1 << 20, dtype=torch.uint8)}, path / name)
        weight_map.update(dict.fromkeys([*shard, f"filler.{number}"], name))
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


def _a_log(fixture: str, heads: int, random: torch.Generator) -> torch.Tensor:
    """Log-scales in the shape that the model is published with."""
    a_log = torch.empty(heads).uniform_(-2, 3, generator=random)
    if fixture == "kimi-linear-48b-a3b":
        return a_log.view(1, 1, heads, 1)
    # published with one entry a channel of a head, zeros behind the last head
    return torch.cat([a_log, torch.zeros(128 - heads)]) if fixture == "kimi-k3" else a_log
