"""One row per architecture: a tiny native configuration, and a random model built from it.

Sizes are the smallest that keep every distinction a layout makes: d_k differs from d_v where a family allows it,
key heads from value heads, KV heads from query heads, and the conv width from every other number.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from transformers import (
    AutoModelForCausalLM,
    GraniteMoeHybridConfig,
    KimiLinearConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
)

VOCAB = 128
MAX_POSITIONS = 512
# 1/rate of the decay in tokens, spread log-uniformly over the heads or channels of each layer
SHORTEST_HORIZON, LONGEST_HORIZON = 3.0, 4000.0

_LAYERS = ["linear_attention", "linear_attention", "full_attention"] * 2
_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": len(_LAYERS),
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_POSITIONS,
    # 1/sqrt(hidden): activations stay of order one, so that errors are seen at the logits
    "initializer_range": 0.125,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
_QWEN = {
    **_COMMON,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
_KIMI = {
    **_COMMON,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "linear_num_heads": 4,
    "linear_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "layer_types": list(_LAYERS),
}
_GRANITE = {
    **_COMMON,
    "num_key_value_heads": 2,
    "layer_types": list(_LAYERS),
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 32,
    "mamba_n_groups": 2,
    "mamba_expand": 2,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 64,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_intermediate_size": 96,
    "embedding_multiplier": 4.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.25,
    "logits_scaling": 1.0,
}


def _qwen3_5() -> PreTrainedConfig:
    return Qwen3_5TextConfig(**_QWEN, layer_types=list(_LAYERS))


def _qwen3_5_moe() -> PreTrainedConfig:
    experts = {"num_experts": 4, "num_experts_per_tok": 2}
    sizes = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
    return Qwen3_5MoeTextConfig(**_QWEN, **experts, **sizes, layer_types=list(_LAYERS))


def _kimi_linear() -> PreTrainedConfig:
    return KimiLinearConfig(**_KIMI, mlp_layer_types=["dense"] * len(_LAYERS))


def _kimi_linear_moe() -> PreTrainedConfig:
    return KimiLinearConfig(**_KIMI, mlp_layer_types=["dense"] + ["sparse"] * (len(_LAYERS) - 1))


def _granite_hybrid() -> PreTrainedConfig:
    return GraniteMoeHybridConfig(**_GRANITE, position_embedding_type=None)


def _granite_hybrid_rope() -> PreTrainedConfig:
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    return GraniteMoeHybridConfig(**_GRANITE, position_embedding_type="rope", rope_parameters=rope)


ARCHITECTURES: dict[str, Callable[[], PreTrainedConfig]] = {
    "qwen3_5": _qwen3_5,
    "qwen3_5_moe": _qwen3_5_moe,
    "kimi_linear": _kimi_linear,
    "kimi_linear_moe": _kimi_linear_moe,
    "granite_hybrid": _granite_hybrid,
    "granite_hybrid_rope": _granite_hybrid_rope,
}


def build_model(name: str, seed: int = 0) -> PreTrainedModel:
    """A random model of row ``name``, fp32 and in eval mode; the same seed gives the same weights.

    Decay parameters are drawn so that horizons range from a few to thousands of tokens in every recurrent layer, and
    norm weights, skip weights and router biases are away from their all-equal initial values.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(ARCHITECTURES[name](), dtype=torch.float32)
        _randomise(model)
    return model.eval()


@torch.no_grad()
def _randomise(model: PreTrainedModel) -> None:
    for module in model.modules():
        if hasattr(module, "A_log") and hasattr(module, "dt_bias"):
            _spread_decay(module.A_log, module.dt_bias)
    for name, parameter in model.named_parameters():
        if name.endswith(("norm.weight", ".D")):
            parameter.add_(0.2 * torch.randn_like(parameter))
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.add_(0.05 * torch.randn_like(buffer))
    # logits of a few units, so that the greedy token is seldom a matter of rounding
    model.lm_head.weight.mul_(2.0)


def _spread_decay(a_log: torch.Tensor, dt_bias: torch.Tensor) -> None:
    """Draw ``exp(A_log) * softplus(dt_bias)`` (the rate at a zero gate input) log-uniformly over the horizons."""
    low, high = math.log(SHORTEST_HORIZON), math.log(LONGEST_HORIZON)
    # evenly spaced and shuffled: every layer has short and long horizons whatever its number of heads
    horizons = torch.linspace(low, high, dt_bias.numel())[torch.randperm(dt_bias.numel())].exp()
    a_log.uniform_(0.0, math.log(16.0))
    amplitude = a_log.flatten().exp().repeat_interleave(dt_bias.numel() // a_log.numel())
    # inverse of softplus; rates are small, where log(expm1) is exact
    dt_bias.copy_((1.0 / (horizons * amplitude)).expm1().log().view_as(dt_bias))
