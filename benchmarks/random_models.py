"""Models of random weights on a GPU, for timing only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, Qwen3_5TextConfig

from holdover.arch.registry import layout_from_config
from holdover.engine.hf.host import HostModel

VOCABULARY = 151_936


class Letters:
    """A tokenizer in name: what stands for a token does not matter here."""

    has_chat_template = False

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % VOCABULARY for letter in text]

    encode_part = encode

    def decode(self, ids: Sequence[int]) -> str:
        return "a" * len(ids)


def three_to_one(layers: int) -> list[str]:
    """Kinds of so many layers, of which every fourth is of attention."""
    return (["linear_attention"] * 3 + ["full_attention"]) * (layers // 4)


def gdn_config(layers: int, *, hidden: int, mlp: int, kv_heads: int, **further: Any) -> PreTrainedConfig:
    """A dense Qwen3.5 of three GDN layers to one of attention: 32 value and 16 key heads of 128 x 128.

    Args:
        layers: in all; a multiple of 4.
        hidden: width of the model.
        mlp: width of its MLPs.
        kv_heads: of the attention layers.
        further: fields of the configuration.
    """
    return Qwen3_5TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        layer_types=three_to_one(layers),
        num_attention_heads=16,
        num_key_value_heads=kv_heads,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        tie_word_embeddings=False,
        **further,
    )


def random_host(config: PreTrainedConfig) -> HostModel:
    """The model of ``config`` in bfloat16, with the same random weights every time."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return HostModel(model, layout_from_config(config.to_dict(), dtype="bfloat16"))
