"""Qwen3.5 and Qwen3.6 text models, dense and mixture-of-experts: gated delta networks and gated attention."""

from __future__ import annotations

from functools import partial

from holdover.arch.architecture import Architecture, CoupledTensor, DecayNames, Gate, Segment
from holdover.arch.common import LayerKind, assemble, divided, indices, layer_count, listed_kinds, read_rotary
from holdover.arch.fields import Fields
from holdover.arch.layout import AttentionLayer, ModelLayout, RecurrentLayer
from holdover.errors import ConfigError

_NAME = "qwen3_5"
_KEYS, _VALUES, _HEADS = Segment("key", "d_k"), Segment("value", "d_v"), Segment("value", "one")


def read_gdn_layout(name: str, fields: Fields, published: str, host: str) -> ModelLayout:
    """The layout that Qwen3.5 and Qwen3-Next share; ``name`` is the registry name."""
    kinds = _kinds(fields)
    recurrent = [_recurrent(fields, index) for index in indices(kinds, "recurrent")]
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


def _recurrent(fields: Fields, index: int) -> RecurrentLayer:
    heads, key_heads = fields.integer("linear_num_value_heads"), fields.integer("linear_num_key_heads")
    divided(fields, ("linear_num_value_heads", heads), ("linear_num_key_heads", key_heads))
    d_k, d_v = fields.integer("linear_key_head_dim"), fields.integer("linear_value_head_dim")
    return RecurrentLayer(
        index=index,
        family="gdn",
        heads=heads,
        key_heads=key_heads,
        d_k=d_k,
        d_v=d_v,
        unit="head",
        conv_channels=2 * key_heads * d_k + heads * d_v,
        conv_width=fields.integer("linear_conv_kernel_dim", minimum=2),
    )


def _attention(fields: Fields, index: int) -> AttentionLayer:
    query_heads, heads = fields.integer("num_attention_heads"), fields.integer("num_key_value_heads")
    divided(fields, ("num_attention_heads", query_heads), ("num_key_value_heads", heads))
    head_dim = fields.integer("head_dim")
    rotary = read_rotary(fields, head_dim, partial=0.25)
    return AttentionLayer(index, "heads", heads, head_dim, head_dim, query_heads, rotary)


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
        CoupledTensor("linear_attn.A_log", 0, (_HEADS,)),
        CoupledTensor("linear_attn.dt_bias", 0, (_HEADS,)),
        CoupledTensor("linear_attn.in_proj_qkv.weight", 0, (_KEYS, _KEYS, _VALUES)),
        CoupledTensor("linear_attn.conv1d.weight", 0, (_KEYS, _KEYS, _VALUES)),
        CoupledTensor("linear_attn.in_proj_z.weight", 0, (_VALUES,)),
        CoupledTensor("linear_attn.in_proj_b.weight", 0, (_HEADS,)),
        CoupledTensor("linear_attn.in_proj_a.weight", 0, (_HEADS,)),
        CoupledTensor("linear_attn.out_proj.weight", 1, (_VALUES,)),
    ),
)
