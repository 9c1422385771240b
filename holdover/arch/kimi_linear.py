"""Kimi-Linear: Kimi delta attention (decay per key channel) and latent attention without positions."""

from __future__ import annotations

from holdover.arch.architecture import Architecture, CoupledTensor, DecayNames, Gate, Segment
from holdover.arch.common import LayerKind, assemble, indices, layer_count, listed_kinds
from holdover.arch.fields import Fields
from holdover.arch.layout import AttentionLayer, ModelLayout, RecurrentLayer
from holdover.errors import ConfigError

_NAME = "kimi_linear"
_KEYS, _VALUES, _HEADS = Segment("key", "d_k"), Segment("value", "d_v"), Segment("value", "one")


def _read_layout(fields: Fields, published: str, host: str) -> ModelLayout:
    if fields.get("mla_use_nope") is False:
        raise fields.invalid(("mla_use_nope",), False, "true: cached latents are read as they are, without rotation")
    kinds = _kinds(fields)
    gate = _read_gate(fields)
    recurrent = [_recurrent(fields, gate, index) for index in indices(kinds, "recurrent")]
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


def _recurrent(fields: Fields, gate: Gate, index: int) -> RecurrentLayer:
    heads = _linear(fields, "num_heads", "linear_num_heads")
    width = _linear(fields, "head_dim", "linear_head_dim")
    return RecurrentLayer(
        index=index,
        family="kda",
        heads=heads,
        key_heads=heads,
        d_k=width,
        d_v=width,
        unit="channel",
        conv_channels=3 * heads * width,
        conv_width=_linear(fields, "short_conv_kernel_size", "linear_conv_kernel_dim", minimum=2),
        gate=gate.form,
    )


def _linear(fields: Fields, published: str, native: str, *, minimum: int = 1) -> int:
    """A size of the recurrent layers; the published section wins, as it does in the host."""
    linear = fields.section("linear_attn_config")
    if linear.has(published):
        return linear.integer(published, minimum=minimum)
    if fields.has(native):
        return fields.integer(native, minimum=minimum)
    raise ConfigError(f"config: neither linear_attn_config.{published} nor {native} is set; wanted a positive integer")


def _attention(fields: Fields, index: int) -> AttentionLayer:
    latent, shared = fields.integer("kv_lora_rank"), fields.integer("qk_rope_head_dim")
    return AttentionLayer(index, "latent", 1, latent, shared, fields.integer("num_attention_heads"))


def _read_gate(fields: Fields) -> Gate:
    linear = fields.section("linear_attn_config")
    if not linear.has("gate_lower_bound"):
        return Gate()
    bound = linear.number("gate_lower_bound")
    if bound >= 0:
        raise linear.invalid(("gate_lower_bound",), bound, "a negative number")
    return Gate("bounded", lower_bound=bound)


ARCHITECTURE = Architecture(
    name=_NAME,
    model_types=("kimi_linear",),
    classes=("KimiLinearForCausalLM",),
    read_layout=_read_layout,
    read_gate=_read_gate,
    prefixes=("model.layers.{i}.", "language_model.model.layers.{i}."),
    published=DecayNames("self_attn.A_log", "self_attn.dt_bias"),
    loaded=DecayNames("self_attn.forget_gate.A_log", "self_attn.forget_gate.dt_bias"),
    coupled=(
        CoupledTensor("self_attn.A_log", 2, (_HEADS,), "published"),
        CoupledTensor("self_attn.dt_bias", 0, (_KEYS,), "published"),
        CoupledTensor("self_attn.f_b_proj.weight", 0, (_KEYS,), "published"),
        CoupledTensor("self_attn.q_conv1d.weight", 0, (_KEYS,), "published"),
        CoupledTensor("self_attn.k_conv1d.weight", 0, (_KEYS,), "published"),
        CoupledTensor("self_attn.v_conv1d.weight", 0, (_VALUES,), "published"),
        CoupledTensor("self_attn.forget_gate.A_log", 2, (_HEADS,), "loaded"),
        CoupledTensor("self_attn.forget_gate.dt_bias", 0, (_KEYS,), "loaded"),
        CoupledTensor("self_attn.forget_gate.f_b_proj.weight", 0, (_KEYS,), "loaded"),
        CoupledTensor("self_attn.conv1d.weight", 0, (_KEYS, _KEYS, _VALUES), "loaded"),
        CoupledTensor("self_attn.q_proj.weight", 0, (_KEYS,)),
        CoupledTensor("self_attn.k_proj.weight", 0, (_KEYS,)),
        CoupledTensor("self_attn.v_proj.weight", 0, (_VALUES,)),
        CoupledTensor("self_attn.b_proj.weight", 0, (_HEADS,)),
        CoupledTensor("self_attn.g_b_proj.weight", 0, (_VALUES,)),
        CoupledTensor("self_attn.o_proj.weight", 1, (_VALUES,)),
    ),
)
