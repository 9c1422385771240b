"""One row per architecture: a tiny native configuration, and a random model built from it.

Sizes are the smallest that keep every distinction a layout makes: d_k differs from d_v where a family allows it,
key heads from value heads, KV heads from query heads, and the conv width from every other number.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    BambaConfig,
    FalconH1Config,
    GraniteMoeHybridConfig,
    KimiLinearConfig,
    NemotronHConfig,
    OlmoHybridConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    Zamba2Config,
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
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_GDN = {
    **_COMMON,
    "num_key_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}
_QWEN = {
    **_GDN,
    "head_dim": 32,
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
_MAMBA = {
    **_COMMON,
    "num_key_value_heads": 2,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 32,
    "mamba_n_groups": 2,
    "mamba_expand": 2,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 64,
}
_GRANITE = {
    **_MAMBA,
    "layer_types": list(_LAYERS),
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
    return Qwen3_5MoeTextConfig(**_QWEN, **_EXPERTS, shared_expert_intermediate_size=32, layer_types=list(_LAYERS))


def _qwen3_next_moe() -> PreTrainedConfig:
    # one sparse layer, of many
    experts = {**_EXPERTS, "shared_expert_intermediate_size": 32, "mlp_only_layers": [0, 2, 3, 4, 5]}
    rope = {**_ROPE, "partial_rotary_factor": 0.25}
    return Qwen3NextConfig(**_GDN, **experts, head_dim=32, rope_parameters=rope, layer_types=list(_LAYERS))


def _olmo_hybrid() -> PreTrainedConfig:
    # keys as wide as values in all: when it saves, the host cuts the convolution into three equal parts
    heads = {"linear_num_value_heads": 8, "linear_value_head_dim": 16, "linear_num_key_heads": 4}
    sizes = {**_GDN, **heads, "linear_key_head_dim": 32}
    return OlmoHybridConfig(**sizes, rope_parameters={**_ROPE, "rope_theta": None}, layer_types=list(_LAYERS))


def _kimi_linear() -> PreTrainedConfig:
    return KimiLinearConfig(**_KIMI, mlp_layer_types=["dense"] * len(_LAYERS))


def _kimi_linear_moe() -> PreTrainedConfig:
    return KimiLinearConfig(**_KIMI, mlp_layer_types=["dense"] + ["sparse"] * (len(_LAYERS) - 1))


def _bailing_hybrid_moe() -> PreTrainedConfig:
    latent = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    experts = {**_EXPERTS, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 5, "num_mtp_layers": 0}
    # the width of the linear layers; the host keeps another number under this name afterwards
    sizes = {"num_key_value_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4}
    return transformers.BailingHybridConfig(**_COMMON, **latent, **experts, **sizes, layer_types=list(_LAYERS))


def _bamba() -> PreTrainedConfig:
    return BambaConfig(**_MAMBA, attn_layer_indices=[2, 5], rope_parameters=dict(_ROPE))


def _nemotron_h_moe() -> PreTrainedConfig:
    sizes = {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 32, "n_groups": 2, "conv_kernel": 4}
    attention = {"num_key_value_heads": 2, "head_dim": 32}
    experts = {"n_routed_experts": 4, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32}
    kinds = [*_LAYERS, "mlp", "linear_attention", "moe"]
    common = {key: value for key, value in _COMMON.items() if key != "num_hidden_layers"}
    return NemotronHConfig(**common, **sizes, **attention, **experts, chunk_size=64, layers_block_type=kinds)


def _falcon_h1() -> PreTrainedConfig:
    multipliers = {
        "ssm_in_multiplier": 1.25,
        "ssm_multipliers": [0.5, 0.75, 1.25, 1.5, 0.9],
        "ssm_out_multiplier": 0.6,
        "attention_in_multiplier": 1.1,
        "attention_out_multiplier": 0.8,
        "key_multiplier": 0.7,
        "embedding_multiplier": 4.0,
        "mlp_multipliers": [0.9, 0.8],
    }
    return FalconH1Config(**{**_MAMBA, **multipliers, "mamba_d_ssm": 128}, rope_parameters=dict(_ROPE))


def _zamba2() -> PreTrainedConfig:
    sizes = {"n_mamba_heads": 8, "mamba_d_state": 32, "mamba_ngroups": 2, "mamba_expand": 2, "mamba_d_conv": 4}
    # three layers over two blocks: the third shares the first one's
    kinds = ["linear_attention", "hybrid", "hybrid", "linear_attention", "linear_attention", "hybrid"]
    shared = {"num_mem_blocks": 2, "use_shared_attention_adapter": True, "adapter_rank": 8, "use_mem_rope": True}
    return Zamba2Config(
        **_COMMON, **sizes, **shared, chunk_size=64, layers_block_type=kinds, rope_parameters=dict(_ROPE)
    )


def _granite_hybrid() -> PreTrainedConfig:
    return GraniteMoeHybridConfig(**_GRANITE, position_embedding_type=None)


def _granite_hybrid_rope() -> PreTrainedConfig:
    return GraniteMoeHybridConfig(**_GRANITE, position_embedding_type="rope", rope_parameters=dict(_ROPE))


ARCHITECTURES: dict[str, Callable[[], PreTrainedConfig]] = {
    "qwen3_5": _qwen3_5,
    "qwen3_5_moe": _qwen3_5_moe,
    "qwen3_next_moe": _qwen3_next_moe,
    "olmo_hybrid": _olmo_hybrid,
    "kimi_linear": _kimi_linear,
    "kimi_linear_moe": _kimi_linear_moe,
    "bailing_hybrid_moe": _bailing_hybrid_moe,
    "granite_hybrid": _granite_hybrid,
    "granite_hybrid_rope": _granite_hybrid_rope,
    "bamba": _bamba,
    "nemotron_h_moe": _nemotron_h_moe,
    "falcon_h1": _falcon_h1,
    "zamba2": _zamba2,
}
# the oldest release that is supported does not have it yet
if not hasattr(transformers, "BailingHybridConfig"):
    del ARCHITECTURES["bailing_hybrid_moe"]


def build_model(name: str, seed: int = 0) -> PreTrainedModel:
    """A random model of row ``name``, fp32 and in eval mode; the same seed gives the same weights.

    Decay parameters are drawn so that horizons range from a few to thousands of tokens in every recurrent layer, and
    norm weights, skip weights and biases are away from their all-equal initial values.
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
            bound = module.lower_bound if getattr(module, "safe_gate", False) else None
            _spread_decay(module.A_log, module.dt_bias, bound)
    for name, parameter in model.named_parameters():
        if name.endswith(("norm.weight", ".D", ".bias")):
            parameter.add_(0.2 * torch.randn_like(parameter))
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.add_(0.05 * torch.randn_like(buffer))
    # logits of a few units, so that the greedy token is seldom a matter of rounding
    model.lm_head.weight.mul_(2.0)


def _spread_decay(a_log: torch.Tensor, dt_bias: torch.Tensor, bound: float | None) -> None:
    """Draw the rates at a zero gate input log-uniformly over the horizons.

    ``exp(A_log) * softplus(dt_bias)``, or ``-bound * sigmoid(exp(A_log) * dt_bias)`` where the gate is bounded.
    """
    low, high = math.log(SHORTEST_HORIZON), math.log(LONGEST_HORIZON)
    # evenly spaced and shuffled: every layer has short and long horizons whatever its number of heads
    rates = 1.0 / torch.linspace(low, high, dt_bias.numel())[torch.randperm(dt_bias.numel())].exp()
    a_log.uniform_(0.0, math.log(16.0))
    amplitude = a_log.flatten().exp().repeat_interleave(dt_bias.numel() // a_log.numel())
    # inverse of softplus; rates are small, where log(expm1) is exact
    biases = (rates / amplitude).expm1().log() if bound is None else (rates / -bound).logit() / amplitude
    dt_bias.copy_(biases.view_as(dt_bias))
