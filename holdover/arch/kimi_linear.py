"""Kimi-Linear and the text part of Kimi-K3: Kimi delta attention (decay per key channel) and latent attention.

Neither has positions. Kimi-K3's configuration wraps one of Kimi-Linear with a bounded gate, and its files pad ``A_log``
with zeros behind the last head.
"""

from __future__ import annotations

from holdover.arch.architecture import Architecture, DecayNames, Gate
from holdover.arch.common import LayerKind, assemble, indices, layer_count, listed_kinds
from holdover.arch.fields import Fields
from holdover.arch.kda import bounded_gate, coupled_tensors, sectioned_kda_layer
from holdover.arch.layout import AttentionLayer, ModelLayout
from holdover.errors import ConfigError

_NAME = "kimi_linear"


def _read_layout(fields: Fields, published: str, host: str) -> ModelLayout:
    if fields.get("mla_use_nope") is False:
        raise fields.invalid(("mla_use_nope",), False, "true: cached latents are read as they are, without rotation")
    kinds = _kinds(fields)
    gate = _read_gate(fields)
    recurrent = [sectioned_kda_layer(fields, gate, index) for index in indices(kinds, "recurrent")]
    attention = [_attention(fields, index) for index in indices(kinds, "attention")]
    return assemble(_NAME, fields, (published, host), recurrent, attention)


def _kinds(fields: Fields) -> tuple[LayerKind, ...]:
    """Kinds from ``layer_types`` (native) or the 1-based lists of ``linear_attn_config`` (published)."""
    kinds = listed_kinds(fields, "layer_types")
    if kinds is not None:
        return kinds
    linear = fields.section("linear_attn_config")
    if not (linear.has("kda_layers") and linear.has("full_attn_layers")):
        keys = "linear_attn_config.kda_layers with linear_attn_config.full_attn_layers"
        raise ConfigError(f"config: neither layer_types nor {keys} is set; wanted one of the two forms")
    count = layer_count(fields)
    by_number: dict[int, LayerKind] = {}
    lists: tuple[tuple[str, LayerKind], ...] = (("kda_layers", "recurrent"), ("full_attn_layers", "attention"))
    for name, kind in lists:
        for number in linear.sequence(name):
            if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= count:
                raise linear.invalid((name,), number, f"layer numbers from 1 to {count}")
            if number in by_number:
                raise linear.invalid((name,), number, "every layer listed once")
            by_number[number] = kind
    missing = [number for number in range(1, count + 1) if number not in by_number]
    if missing:
        raise linear.invalid(("kda_layers",), linear.get("kda_layers"), f"layers {missing[:8]} in one of the two lists")
    return tuple(by_number[number] for number in range(1, count + 1))


def _attention(fields: Fields, index: int) -> AttentionLayer:
    latent, shared = fields.integer("kv_lora_rank"), fields.integer("qk_rope_head_dim")
    return AttentionLayer(index, "latent", 1, latent, shared, fields.integer("num_attention_heads"))


def _read_gate(fields: Fields) -> Gate:
    linear = fields.section("linear_attn_config")
    return bounded_gate(linear, "gate_lower_bound") if linear.has("gate_lower_bound") else Gate()


ARCHITECTURE = Architecture(
    name=_NAME,
    model_types=("kimi_linear", "kimi_k3"),
    classes=("KimiLinearForCausalLM", "KimiK3ForConditionalGeneration"),
    read_layout=_read_layout,
    read_gate=_read_gate,
    prefixes=("model.layers.{i}.", "language_model.model.layers.{i}."),
    published=DecayNames("self_attn.A_log", "self_attn.dt_bias"),
    loaded=DecayNames("self_attn.forget_gate.A_log", "self_attn.forget_gate.dt_bias"),
    coupled=coupled_tensors(
        "self_attn.", "self_attn.", head_axis=2, decay="f_b_proj", gate="g_b_proj", output="o_proj"
    ),
)
