"""Ling 3 and its kin (``bailing_hybrid``): Kimi delta attention and latent attention with positions.

Ling 2.5, Ring 2.5 and Ling 2.6 claim the same model type, but their linear layers are lightning attention: a constant
decay per head that no parameter holds. They are refused. Names are those of the published ``BailingMoeV3ForCausalLM``
and of the host's own class.
"""

from __future__ import annotations

from holdover.arch.architecture import Architecture, DecayNames, Gate
from holdover.arch.common import LayerKind, assemble, indices, layer_count, listed_kinds, rotary_of
from holdover.arch.fields import Fields
from holdover.arch.kda import bounded_gate, coupled_tensors, kda_layer
from holdover.arch.layout import AttentionLayer, ModelLayout
from holdover.errors import UnsupportedArchitectureError

_NAME = "bailing_hybrid"
# what the published code assumes where a configuration does not say
_DEFAULT_BOUND = -5.0


def _read_layout(fields: Fields, published: str, host: str) -> ModelLayout:
    gate, kinds = _read_gate(fields), _kinds(fields)
    # the host keeps the linear layers' sizes under their native names, and another width under head_dim
    heads = fields.integer("linear_num_heads", "num_attention_heads")
    width = fields.integer("linear_head_dim", "head_dim")
    conv_width = fields.integer("linear_conv_kernel_dim", "short_conv_kernel_size", minimum=2)
    recurrent = [kda_layer(index, heads, width, conv_width, gate) for index in indices(kinds, "recurrent")]
    attention = [_attention(fields, index) for index in indices(kinds, "attention")]
    return assemble(_NAME, fields, (published, host), recurrent, attention)


def _kinds(fields: Fields) -> tuple[LayerKind, ...]:
    """Kinds from ``layer_types`` (native), or attention at the end of every group (published)."""
    kinds = listed_kinds(fields, "layer_types")
    if kinds is not None:
        return kinds
    group, count = fields.integer("layer_group_size"), layer_count(fields)
    # the published code makes the layers of a last, partial group attention, the host makes them recurrent
    if count % group:
        raise fields.invalid(("layer_group_size",), group, f"a divisor of num_hidden_layers, which is {count}")
    return tuple("recurrent" if (index + 1) % group else "attention" for index in range(count))


def _attention(fields: Fields, index: int) -> AttentionLayer:
    latent, shared = fields.integer("kv_lora_rank"), fields.integer("qk_rope_head_dim")
    # all of the shared key part is rotated; a fraction in the configuration is that of another width
    rotary = rotary_of(fields, shared)
    return AttentionLayer(index, "latent", 1, latent, shared, fields.integer("num_attention_heads"), rotary)


def _read_gate(fields: Fields) -> Gate:
    if not fields.has("kda_safe_gate", "kda_lower_bound"):
        raise UnsupportedArchitectureError(
            f"this {_NAME} model sets neither kda_safe_gate nor kda_lower_bound: its linear layers are lightning "
            "attention (Ling 2.5), whose decay no parameter holds; only Kimi delta attention (Ling 3) is read"
        )
    if not fields.flag("kda_safe_gate", default=True):
        return Gate()
    return bounded_gate(fields, "kda_lower_bound", default=_DEFAULT_BOUND)


ARCHITECTURE = Architecture(
    name=_NAME,
    model_types=("bailing_hybrid", "bailing_moe_v3"),
    classes=("BailingHybridForCausalLM", "BailingMoeV3ForCausalLM"),
    read_layout=_read_layout,
    read_gate=_read_gate,
    prefixes=("model.layers.{i}.",),
    published=DecayNames("attention.A_log", "attention.dt_bias"),
    loaded=DecayNames("self_attn.forget_gate.A_log", "self_attn.forget_gate.dt_bias"),
    coupled=coupled_tensors("attention.", "self_attn.", head_axis=0, decay="f_proj", gate="g_proj", output="dense"),
)
