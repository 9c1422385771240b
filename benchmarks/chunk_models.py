"""Models that chunk reuse is timed on: random weights of published shapes on a GPU, a bundled model on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import GraniteMoeHybridConfig, PreTrainedConfig

from benchmarks.random_models import Letters, gdn_config, random_host
from holdover.engine.hf.loader import Loaded, load
from holdover.engine.sampling import SamplingDefaults

TINY = "tiny-gdn"
POSITIONS = 1 << 17


def gdn_7b(layers: int) -> PreTrainedConfig:
    """Dense, three GDN layers to one of attention, as the 7B class of Qwen3.5; layers are a multiple of 4."""
    return gdn_config(layers, hidden=4096, mlp=12_288, kv_heads=4, max_position_embeddings=POSITIONS)


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
    host = random_host(config)
    return Loaded(name, host, Letters(), name, "bfloat16", SamplingDefaults(), frozenset())  # type: ignore[arg-type]


def bundled_model() -> Loaded:
    """The bundled model, in float32 on the CPU."""
    return load(TINY, dtype="float32", device="cpu")
