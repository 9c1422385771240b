"""A small Qwen3-Next of random weights, whose heads two ranks can share; it has no tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

VOCABULARY = 4096


def write_qwen3_next(folder: Path) -> Path:
    """Write the model's files, the same at every call, unless they are there. Returns the folder."""
    if not (folder / "config.json").exists():
        config = Qwen3NextConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=64,
            linear_value_head_dim=64,
            # vLLM takes a Qwen3-Next without experts for another model; one layer has them
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
            shared_expert_intermediate_size=64,
            mlp_only_layers=[0, 1, 2],
            max_position_embeddings=4096,
            eos_token_id=None,
            bos_token_id=None,
            pad_token_id=0,
        )
        torch.manual_seed(0)
        model = Qwen3NextForCausalLM(config).to(torch.bfloat16)
        _spread_decays(model)
        model.save_pretrained(folder)
    return folder


def _spread_decays(model: Qwen3NextForCausalLM) -> None:
    """Half-lives from a few tokens to thousands, in every layer: a state that is not restored then shows."""
    for module in model.modules():
        if hasattr(module, "A_log"):
            with torch.no_grad():
                module.A_log.copy_(torch.linspace(-7, 0, len(module.A_log)))
