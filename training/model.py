"""Configurations of the bundled models, and how their decays start.

A recurrent head forgets by ``exp(-exp(A_log) · softplus(a + dt_bias))`` a token.  Transformers' initialisation gives
every head a horizon of a few tokens; here both factors are spread evenly on a log scale over a layer's heads, so that
horizons cover orders of magnitude up to the context's length.
"""

from __future__ import annotations

import math

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


def _gdn(vocabulary: int, tiny: bool) -> PreTrainedModel:
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    heads = {"linear_num_key_heads": 4, "linear_num_value_heads": 8} if tiny else {"linear_num_key_heads": 1, "linear_num_value_heads": 2}
    config = Qwen3_5TextConfig(
        vocab_size=vocabulary,
        hidden_size=192 if tiny else 64,
        intermediate_size=512 if tiny else 128,
        num_hidden_layers=8 if tiny else 4,
        num_attention_heads=3 if tiny else 1,
        num_key_value_heads=1,
        head_dim=64,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_conv_kernel_dim=4,
        full_attention_interval=4,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        tie_word_embeddings=True,
        **heads,
    )
    return Qwen3_5ForCausalLM(config)


_ARCHITECTURES = {"gdn": _gdn}


def decay_parameters(model: nn.Module) -> list[tuple[int, tuple[Tensor, Tensor]]]:
    """(layer index, (A_log, dt_bias)) of every recurrent layer, in order."""
    found = []
    for index, layer in enumerate(model.model.layers):
        for module in layer.modules():
            if isinstance(getattr(module, "A_log", None), Tensor) and isinstance(getattr(module, "dt_bias", None), Tensor):
                found.append((index, (module.A_log, module.dt_bias)))
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
    """Tokens until a head's state has decayed to ``epsilon``, for a typical gate ``activation``: layer -> ``[H]``."""
    out = {}
    for index, (a_log, dt_bias) in decay_parameters(model):
        rate = a_log.float().exp().flatten()
        step = nn.functional.softplus(dt_bias.float() + activation).view(rate.numel(), -1).mean(-1)
        out[index] = math.log(1 / epsilon) / (rate * step)
    return out
