"""GLM-5.3-Flash (``glm5_next``): Kimi delta attention and sparse latent attention without positions; files only.

The sparse layers' indexer keeps pooled keys of its own beside the latents; they are not part of the KV layout.
"""

from __future__ import annotations

from holdover.arch.architecture import Architecture, DecayNames, Gate
from holdover.arch.common import LayerKind, assemble, indices, layer_count, listed_kinds
from holdover.arch.fields import Fields
from holdover.arch.kda import bounded_gate, sectioned_kda_layer
from holdover.arch.layout import AttentionLayer, ModelLayout

_NAME = "glm5_next"
# the host's default; the published configuration says the same
_DEFAULT_BOUND = -5.0
# every fourth layer is attention where no list says otherwise, as in the host
_INTERVAL = 4


def _read_layout(fields: Fields, published: str, host: str) -> ModelLayout:
    gate, kinds = _read_gate(fields), _kinds(fields)
    recurrent = [sectioned_kda_layer(fields, gate, index) for index in indices(kinds, "recurrent")]
    attention = [_attention(fields, index) for index in indices(kinds, "attention")]
    return assemble(_NAME, fields, (published, host), recurrent, attention)


def _kinds(fields: Fields) -> tuple[LayerKind, ...]:
    kinds = listed_kinds(fields, "layer_types")
    if kinds is not None:
        return kinds
    return tuple("recurrent" if (i + 1) % _INTERVAL else "attention" for i in range(layer_count(fields)))


def _attention(fields: Fields, index: int) -> AttentionLayer:
    shared = fields.integer("qk_rope_head_dim", default=0, minimum=0)
    if shared:
        raise fields.invalid(("qk_rope_head_dim",), shared, "0: the attention layers have no positions")
    return AttentionLayer(index, "latent", 1, fields.integer("kv_lora_rank"), 0, fields.integer("num_attention_heads"))


def _read_gate(fields: Fields) -> Gate:
    linear = fields.section("linear_attn_config")
    if not linear.flag("safe_gate", default=True):
        raise linear.invalid(("safe_gate",), False, "true: only the bounded gate is known of this architecture")
    if linear.has("gate_lower_bound"):
        return bounded_gate(linear, "gate_lower_bound")
    return bounded_gate(fields, "linear_lower_bound", default=_DEFAULT_BOUND)


ARCHITECTURE = Architecture(
    name=_NAME,
    model_types=("glm5_next_text", "glm5_next"),
    classes=("Glm5NextForConditionalGeneration",),
    read_layout=_read_layout,
    read_gate=_read_gate,
    # the published model is multimodal
    prefixes=("model.language_model.layers.{i}.", "model.layers.{i}."),
    published=DecayNames("self_attn.A_log", "self_attn.dt_bias"),
    loaded=DecayNames("self_attn.forget_gate.A_log", "self_attn.forget_gate.dt_bias"),
    hosted=False,
)
