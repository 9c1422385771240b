"""Granite 4.0 hybrids: Mamba-2 layers and grouped-query attention, by default without positions."""

from __future__ import annotations

from functools import partial

from holdover.arch.architecture import Architecture
from holdover.arch.common import LayerKind, assemble, grouped_attention, indices, listed_kinds, read_rotary
from holdover.arch.fields import Fields
from holdover.arch.layout import ModelLayout, Rotary
from holdover.arch.mamba2 import DECAY, coupled_tensors, limited_gate, read_mamba2_layer
from holdover.errors import ConfigError

_NAME = "granite_hybrid"


def _read_layout(fields: Fields, published: str, host: str) -> ModelLayout:
    kinds = _kinds(fields)
    recurrent = [read_mamba2_layer(fields, index) for index in indices(kinds, "recurrent")]
    attention = [grouped_attention(fields, index, partial(_rotary, fields)) for index in indices(kinds, "attention")]
    return assemble(_NAME, fields, (published, host), recurrent, attention)


def _kinds(fields: Fields) -> tuple[LayerKind, ...]:
    kinds = listed_kinds(fields, "layer_types", "layers_block_type")
    if kinds is None:
        raise ConfigError("config: layer_types (or layers_block_type) is missing; wanted one entry per layer")
    return kinds


def _rotary(fields: Fields, head_dim: int) -> Rotary | None:
    kind = fields.text("position_embedding_type", default="nope")
    if kind not in ("nope", "rope"):
        raise fields.invalid(("position_embedding_type",), kind, "rope, nope or null")
    return read_rotary(fields, head_dim) if kind == "rope" else None


ARCHITECTURE = Architecture(
    name=_NAME,
    model_types=("granitemoehybrid",),
    classes=("GraniteMoeHybridForCausalLM",),
    read_layout=_read_layout,
    read_gate=limited_gate,
    prefixes=("model.layers.{i}.",),
    published=DECAY.under("mamba."),
    loaded=DECAY.under("mamba."),
    coupled=coupled_tensors("mamba."),
)
