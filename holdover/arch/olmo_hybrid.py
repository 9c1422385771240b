"""OLMo-Hybrid: gated delta networks and attention, as released without positions."""

from __future__ import annotations

from functools import partial

from holdover.arch.architecture import Architecture, CoupledTensor, DecayNames, Gate
from holdover.arch.common import (
    LayerKind,
    assemble,
    grouped_attention,
    indices,
    layer_count,
    listed_kinds,
    rotary_of,
)
from holdover.arch.fields import Fields
from holdover.arch.gdn import HEADS, KEYS, VALUES, gdn_layer
from holdover.arch.layout import ModelLayout, Rotary

_NAME = "olmo_hybrid"
# every fourth layer is attention where no list says otherwise, as in the host
_INTERVAL = 4


def _read_layout(fields: Fields, published: str, host: str) -> ModelLayout:
    kinds = _kinds(fields)
    recurrent = [gdn_layer(fields, index) for index in indices(kinds, "recurrent")]
    attention = [grouped_attention(fields, index, partial(_rotary, fields)) for index in indices(kinds, "attention")]
    return assemble(_NAME, fields, (published, host), recurrent, attention)


def _kinds(fields: Fields) -> tuple[LayerKind, ...]:
    kinds = listed_kinds(fields, "layer_types")
    if kinds is not None:
        return kinds
    return tuple("recurrent" if (i + 1) % _INTERVAL else "attention" for i in range(layer_count(fields)))


def _rotary(fields: Fields, head_dim: int) -> Rotary | None:
    """None where the base is null; where it is missing the host rotates with its default."""
    rope = fields.section("rope_parameters")
    return None if rope.nulled("rope_theta") or fields.nulled("rope_theta") else rotary_of(fields, head_dim)


ARCHITECTURE = Architecture(
    name=_NAME,
    model_types=("olmo_hybrid",),
    classes=("OlmoHybridForCausalLM",),
    read_layout=_read_layout,
    read_gate=lambda fields: Gate(),
    prefixes=("model.layers.{i}.",),
    published=DecayNames("linear_attn.A_log", "linear_attn.dt_bias"),
    loaded=DecayNames("linear_attn.A_log", "linear_attn.dt_bias"),
    coupled=(
        CoupledTensor("linear_attn.A_log", 0, (HEADS,)),
        CoupledTensor("linear_attn.dt_bias", 0, (HEADS,)),
        CoupledTensor("linear_attn.q_conv1d.weight", 0, (KEYS,), "published"),
        CoupledTensor("linear_attn.k_conv1d.weight", 0, (KEYS,), "published"),
        CoupledTensor("linear_attn.v_conv1d.weight", 0, (VALUES,), "published"),
        CoupledTensor("linear_attn.conv1d.weight", 0, (KEYS, KEYS, VALUES), "loaded"),
        CoupledTensor("linear_attn.q_proj.weight", 0, (KEYS,)),
        CoupledTensor("linear_attn.k_proj.weight", 0, (KEYS,)),
        CoupledTensor("linear_attn.v_proj.weight", 0, (VALUES,)),
        CoupledTensor("linear_attn.g_proj.weight", 0, (VALUES,)),
        CoupledTensor("linear_attn.b_proj.weight", 0, (HEADS,)),
        CoupledTensor("linear_attn.a_proj.weight", 0, (HEADS,)),
        CoupledTensor("linear_attn.o_proj.weight", 1, (VALUES,)),
    ),
)
