"""Qwen3.5 and Qwen3.6 text models, dense and mixture-of-experts: gated delta networks and gated attention."""

from __future__ import annotations

from functools import partial

from holdover.arch.architecture import Architecture, CoupledTensor, DecayNames, Gate
from holdover.arch.common import LayerKind, assemble, grouped_attention, indices, layer_count, listed_kinds, read_rotary
from holdover.arch.fields import Fields
from holdover.arch.gdn import HEADS, KEYS, VALUES, gdn_layer
from holdover.arch.layout import AttentionLayer, ModelLayout
from holdover.errors import ConfigError

_NAME = "qwen3_5"


def read_gdn_layout(name: str, fields: Fields, published: str, host: str) -> ModelLayout:
    """The layout that Qwen3.5 and Qwen3-Next share; ``name`` is the registry name."""
    kinds = _kinds(fields)
    recurrent = [gdn_layer(fields, index) for index in indices(kinds, "recurrent")]
    attention = [_attention(fields, index) for index in indices(kinds, "attention")]
    return assemble(name, fields, (published, host), recurrent, attention)


def _kinds(fields: Fields) -> tuple[LayerKind, ...]:
    kinds = listed_kinds(fields, "layer_types")
    if kinds is not None:
        return kinds
    if not fields.has("full_attention_interval"):
        raise ConfigError("config: layer_types and full_attention_interval are missing; wanted one of them")
    interval = fields.integer("full_attention_interval")
    return tuple("recurrent" if (i + 1) % interval else "attention" for i in range(layer_count(fields)))


def _attention(fields: Fields, index: int) -> AttentionLayer:
    rotary = partial(read_rotary, fields, partial=0.25)
    return grouped_attention(fields, index, rotary, head_dim=fields.integer("head_dim"))


ARCHITECTURE = Architecture(
    name=_NAME,
    model_types=("qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe"),
    classes=(
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    ),
    read_layout=partial(read_gdn_layout, _NAME),
    read_gate=lambda fields: Gate(),
    # the published models are multimodal, their text-only copies are not
    prefixes=("model.language_model.layers.{i}.", "model.layers.{i}."),
    published=DecayNames("linear_attn.A_log", "linear_attn.dt_bias"),
    loaded=DecayNames("linear_attn.A_log", "linear_attn.dt_bias"),
    coupled=(
        CoupledTensor("linear_attn.A_log", 0, (HEADS,)),
        CoupledTensor("linear_attn.dt_bias", 0, (HEADS,)),
        CoupledTensor("linear_attn.in_proj_qkv.weight", 0, (KEYS, KEYS, VALUES)),
        CoupledTensor("linear_attn.conv1d.weight", 0, (KEYS, KEYS, VALUES)),
        CoupledTensor("linear_attn.in_proj_z.weight", 0, (VALUES,)),
        CoupledTensor("linear_attn.in_proj_b.weight", 0, (HEADS,)),
        CoupledTensor("linear_attn.in_proj_a.weight", 0, (HEADS,)),
        CoupledTensor("linear_attn.out_proj.weight", 1, (VALUES,)),
    ),
)
