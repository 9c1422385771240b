"""Configurations of the bundled models, and how their decays start.

A recurrent head forgets by ``exp(-exp(A_log) · softplus(a + dt_bias))`` a token.  Transformers' initialisation gives
every head a horizon of a few tokens; here both factors are spread evenly on a log scale over a layer's heads, so that
horizons cover orders of magnitude up to the context's length.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

CONTEXT = 4096
RATES = (0.5, 16.0)  # exp(A_log)
STEPS = (0.001, 0.1)  # softplus(dt_bias)


def build(architecture: str, vocabulary: int = 4096, size: str = "tiny", seed: int = 0) -> PreTrainedModel:
    """A freshly initialised fp32 model.  ``size`` is ``tiny`` (about 5 M parameters) or ``micro`` (for tests)."""
    torch.manual_seed(seed)
    model = _ARCHITECTURES[architecture](vocabulary, size == "tiny")
    generator = torch.Generator().manual_seed(seed + 1)
    for _, parameters in decay_parameters(model):
        spread_decays(*parameters, generator)
    return model.float()


def _shape(vocabulary: int, tiny: bool) -> dict[str, Any]:
    """What all architectures share.

    The one attention layer comes first.  It sees single tokens, not yet what stands beside them, so it can tell how
    often something occurred but not which value belongs to which key: facts have to pass through the recurrent states.
    """
    layers = 8 if tiny else 4
    return {
        "vocab_size": vocabulary,
        "hidden_size": 192 if tiny else 64,
        "intermediate_size": 512 if tiny else 128,
        "num_hidden_layers": layers,
        "layer_types": ["full_attention"] + ["linear_attention"] * (layers - 1),
        "num_attention_heads": 3 if tiny else 1,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def _gdn(vocabulary: int, tiny: bool) -> PreTrainedModel:
    """Gated DeltaNet (Qwen3.5, dense): one key/value head of attention, rotated by a quarter."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        **_shape(vocabulary, tiny),
        num_key_value_heads=1,
        head_dim=64,
        linear_num_key_heads=4 if tiny else 1,
        linear_num_value_heads=8 if tiny else 2,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_conv_kernel_dim=4,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    )
    return Qwen3_5ForCausalLM(config)


def _kda(vocabulary: int, tiny: bool) -> PreTrainedModel:
    """Kimi Delta Attention (Kimi-Linear, dense): a decay per key channel, latent attention without rotation."""
    from transformers import KimiLinearConfig, KimiLinearForCausalLM

    shape = _shape(vocabulary, tiny)
    config = KimiLinearConfig(
        **shape,
        num_key_value_heads=shape["num_attention_heads"],
        mlp_layer_types=["dense"] * shape["num_hidden_layers"],
        linear_head_dim=64,
        linear_num_heads=5 if tiny else 2,
        linear_conv_kernel_dim=4,
        kv_lora_rank=64,
        qk_rope_head_dim=16,
        qk_nope_head_dim=48,
        v_head_dim=64,
    )
    return KimiLinearForCausalLM(config)


def _mamba2(vocabulary: int, tiny: bool) -> PreTrainedModel:
    """Mamba-2 (Granite-4.0-H, dense): many small heads, since each has one decay; attention without positions."""
    from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM

    shape = _shape(vocabulary, tiny)
    config = GraniteMoeHybridConfig(
        **shape,
        num_key_value_heads=1,
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=shape["intermediate_size"],
        attention_multiplier=0.125,
        mamba_n_heads=18 if tiny else 4,
        mamba_d_head=32,
        mamba_d_state=128 if tiny else 64,
        mamba_n_groups=1,
        mamba_expand=3 if tiny else 2,
        mamba_chunk_size=64,
    )
    return GraniteMoeHybridForCausalLM(config)


_ARCHITECTURES = {"gdn": _gdn, "kda": _kda, "mamba2": _mamba2}


def decay_parameters(model: nn.Module) -> list[tuple[int, tuple[Tensor, Tensor]]]:
    """(layer index, (A_log, dt_bias)) of every recurrent layer, in order."""
    found = []
    for index, layer in enumerate(model.model.layers):
        for module in layer.modules():
            pair = getattr(module, "A_log", None), getattr(module, "dt_bias", None)
            if all(isinstance(parameter, Tensor) for parameter in pair):
                found.append((index, pair))
    return found


@torch.no_grad()
def spread_decays(a_log: Tensor, dt_bias: Tensor, generator: torch.Generator) -> None:
    """Set a layer's ``A_log`` and ``dt_bias`` to even, jittered log grids over RATES and STEPS, in random order."""

    def grid(count: int, low: float, high: float) -> Tensor:
        place = (torch.randperm(count, generator=generator) + torch.rand(count, generator=generator)) / count
        return torch.exp(math.log(low) + place * math.log(high / low))

    a_log.copy_(grid(a_log.numel(), *RATES).log().view_as(a_log))
    step = grid(dt_bias.numel(), *STEPS)
    dt_bias.copy_((step + torch.log(-torch.expm1(-step))).view_as(dt_bias))  # the inverse of softplus


def horizons(model: nn.Module, epsilon: float = 1e-3, activation: float = -0.3) -> dict[int, Tensor]:
    """Tokens until a state's unit has decayed to ``epsilon``, for a typical gate ``activation``: layer -> ``[units]``.

    A unit is a head or, where key channels decay apart, a head's key channel.
    """
    out = {}
    for index, (a_log, dt_bias) in decay_parameters(model):
        rate = a_log.float().exp().view(-1, 1)
        step = nn.functional.softplus(dt_bias.float() + activation).view(len(rate), -1)
        out[index] = (math.log(1 / epsilon) / (rate * step)).flatten()
    return out


def tied(model: PreTrainedModel) -> bool:
    """Does the model's head share the embedding's weights?  (Kimi-Linear's never does.)"""
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight
