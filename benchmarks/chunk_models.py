"""Models that chunk reuse is timed on: random weights of published shapes on a GPU, a bundled model on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GraniteMoeHybridConfig, PreTrainedConfig, Qwen3_5TextConfig

from holdover.arch.registry import layout_from_config
from holdover.engine.hf.host import HostModel
from holdover.engine.hf.loader import Loaded, load
from holdover.engine.sampling import SamplingDefaults

TINY = "tiny-gdn"
VOCABULARY = 151_936
POSITIONS = 1 << 17


class Letters:
    """What stands for a token does not matter here, and no text is ever given."""

    has_chat_template = False

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % VOCABULARY for letter in text]

    encode_part = encode

    def decode(self, ids: Sequence[int]) -> str:
        return "a" * len(ids)


def gdn_7b(layers: int) -> PreTrainedConfig:
    """Dense, three GDN layers to one of attention, as the 7B class of Qwen3.5; layers are a multiple of 4."""
    return Qwen3_5TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=4096,
        intermediate_size=12_288,
        num_hidden_layers=layers,
        layer_types=(["linear_attention"] * 3 + ["full_attention"]) * (layers // 4),
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=False,
    )


def granite_tiny(layers: int) -> PreTrainedConfig:
    """Granite-4.0-H-Tiny's shape, with a dense MLP as wide as its shared and six active experts in their place."""
    return GraniteMoeHybridConfig(
        vocab_size=100_352,
        hidden_size=1536,
        num_hidden_layers=layers,
        layer_types=["attention" if i % 10 == 5 else "mamba" for i in range(layers)],
        num_attention_heads=12,
        num_key_value_heads=4,
        num_local_experts=0,
        num_experts_per_tok=0,
        intermediate_size=512,
        shared_intermediate_size=1024 + 6 * 512,
        mamba_n_heads=48,
        mamba_d_head=64,
        mamba_d_state=128,
        mamba_n_groups=1,
        mamba_d_conv=4,
        mamba_expand=2,
        position_embedding_type="nope",
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
    )


# by name: the configuration, and its layers in full
SHAPES: dict[str, tuple[Callable[[int], PreTrainedConfig], int]] = {
    "gdn-7b-shaped": (gdn_7b, 32),
    "granite-4.0-h-tiny-shaped": (granite_tiny, 40),
}


def random_model(name: str, layers: int | None) -> Loaded:
    """A model of `SHAPES` in bfloat16 on the GPU.

    Args:
        name: which.
        layers: of it, if not all; the attention layers stand where they do in the whole.
    """
    shape, whole = SHAPES[name]
    config: Any = shape(layers or whole)
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    host = HostModel(model, layout_from_config(config.to_dict(), dtype="bfloat16"))
    return Loaded(name, host, Letters(), name, "bfloat16", SamplingDefaults(), frozenset())  # type: ignore[arg-type]


def bundled_model() -> Loaded:
    """The bundled model, in float32 on the CPU."""
    return load(TINY, dtype="float32", device="cpu")
