"""Bamba: Mamba-2 layers and grouped-query attention that rotates half of a head."""

from __future__ import annotations

from functools import partial

from holdover.arch.architecture import Architecture
from holdover.arch.common import LayerKind, assemble, grouped_attention, indices, layer_count, read_rotary
from holdover.arch.fields import Fields
from holdover.arch.layout import ModelLayout
from holdover.arch.mamba2 import DECAY, coupled_tensors, limited_gate, read_mamba2_layer

_NAME = "bamba"


def _read_layout(fields: Fields, published: str, host: str) -> ModelLayout:
    kinds, rotary = _kinds(fields), partial(read_rotary, fields, partial=0.5)
    recurrent = [read_mamba2_layer(fields, index) for index in indices(kinds, "recurrent")]
    attention = [grouped_attention(fields, index, rotary) for index in indices(kinds, "attention")]
    return assemble(_NAME, fields, (published, host), recurrent, attention)


def _kinds(fields: Fields) -> tuple[LayerKind, ...]:
    """Attention at the listed indices, Mamba-2 elsewhere."""
    count = layer_count(fields)
    listed = fields.sequence("attn_layer_indices") if fields.has("attn_layer_indices") else ()
    for index in listed:
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
            raise fields.invalid(("attn_layer_indices",), index, f"layer indices from 0 to {count - 1}")
    return tuple("attention" if index in listed else "recurrent" for index in range(count))


ARCHITECTURE = Architecture(
    name=_NAME,
    model_types=("bamba",),
    classes=("BambaForCausalLM",),
    read_layout=_read_layout,
    read_gate=limited_gate,
    prefixes=("model.layers.{i}.",),
    published=DECAY.under("mamba."),
    loaded=DECAY.under("mamba."),
    coupled=coupled_tensors("mamba."),
)
