"""Half of a row's layers: as many kinds of them, and half the time, for tests that run many forwards."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.arch.table import ARCHITECTURES, _randomise

# one row of each family of recurrence
SMALL = {f"small-{row}": row for row in ("qwen3_5", "kimi_linear", "granite_hybrid")}


def build_small(name: str) -> PreTrainedModel:
    """A random model of two recurrent layers and one of attention; the same each time."""
    config = ARCHITECTURES[SMALL[name]]()
    config.num_hidden_layers = 3
    for kinds in ("layer_types", "mlp_layer_types"):
        if hasattr(config, kinds):
            setattr(config, kinds, getattr(config, kinds)[:3])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        _randomise(model)
    return model.eval()
