"""What `vllm_gpu` serves: a dense Qwen3.5 of the recurrent shape of Qwen3.6-35B-A3B, with random weights."""

from __future__ import annotations

import json
from math import log
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ARCHITECTURE = "Qwen3_5ForCausalLM"
VOCABULARY = 32_768
LAYERS, FULL_EVERY = 32, 4
RECURRENT_LAYERS = LAYERS - LAYERS // FULL_EVERY

CONFIG: dict[str, Any] = {
    "architectures": [ARCHITECTURE],
    "model_type": "qwen3_5_text",
    "dtype": "bfloat16",
    "vocab_size": VOCABULARY,
    "hidden_size": 2048,
    # as wide as the experts that are active for a token
    "intermediate_size": 4608,
    "num_hidden_layers": LAYERS,
    "hidden_act": "silu",
    "layer_types": [
        "full_attention" if layer % FULL_EVERY == FULL_EVERY - 1 else "linear_attention" for layer in range(LAYERS)
    ],
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 8192,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 1e7, "rope_type": "default"},
    "use_cache": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


def write_config(folder: Path) -> None:
    """Put the model's configuration where vLLM is told to find a model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1), encoding="utf-8")


def register(*, deferred: bool) -> None:
    """Make vLLM know the architecture, and where asked, load the plug-in as its entry point would.

    vLLM 0.26 has the classes and registers them below a vision model only.
    """
    from vllm.model_executor.models.registry import ModelRegistry

    from holdover.integrations.vllm import plugin
    from holdover.integrations.vllm.decode.models import MODELS, replace_layer, with_log

    if deferred:
        plugin.register()
    if ARCHITECTURE in ModelRegistry.models:
        return
    model = _text_model()
    if deferred:
        served = MODELS[ARCHITECTURE]
        replace_layer(served.layer, served.replacement)
        model = with_log(model, served.family)
    ModelRegistry.register_model(ARCHITECTURE, model)


def _text_model() -> Any:
    from vllm.model_executor.models import qwen3_5
    from vllm.model_executor.models.interfaces import IsHybrid

    vision = qwen3_5.Qwen3_5ForConditionalGeneration

    class TextModel(qwen3_5.Qwen3_5ForCausalLM, IsHybrid):  # type: ignore[misc]
        is_hybrid = True

        @classmethod
        def get_mamba_state_dtype_from_config(cls, vllm_config: Any) -> Any:
            return vision.get_mamba_state_dtype_from_config(vllm_config)

        @classmethod
        def get_mamba_state_shape_from_config(cls, vllm_config: Any) -> Any:
            return vision.get_mamba_state_shape_from_config(vllm_config)

        @classmethod
        def get_mamba_state_copy_func(cls) -> Any:
            return vision.get_mamba_state_copy_func()

    return TextModel


def draw(model: torch.nn.Module) -> None:
    """Weights of a scale that keeps activations near 1, and decays from a few tokens to thousands.

    vLLM's own dummy weights are all so small that layers add nothing to what a token is embedded as.
    """
    noise: torch.Generator | None = None
    with torch.inference_mode():
        for name, value in model.named_parameters():
            noise = noise or torch.Generator(value.device).manual_seed(0)
            value.copy_(_drawn(name, value, noise))


def _drawn(name: str, value: Tensor, noise: torch.Generator) -> Tensor:
    drawn = torch.empty(value.shape, device=value.device)
    leaf = name.rpartition(".")[2]
    if leaf == "A_log":
        return drawn.uniform_(1, 16, generator=noise).log()
    if leaf == "dt_bias":
        step = drawn.uniform_(log(1e-3), log(1e-1), generator=noise).exp()
        return step + torch.log(-torch.expm1(-step))
    if value.ndim == 1:
        # norms of the layers multiply by 1 + weight, those behind a recurrence by the weight
        return drawn.fill_(float(name.endswith("linear_attn.norm.weight")))
    scale = 1.0 if "embed_tokens" in name else value.shape[-1] ** -0.5
    return drawn.normal_(0, scale, generator=noise)
