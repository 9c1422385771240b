"""Falcon-H1: Mamba-2 and grouped-query attention side by side in every layer."""

from __future__ import annotations

from functools import partial

from holdover.arch.architecture import Architecture
from holdover.arch.common import assemble, grouped_attention, layer_count, rotary_of
from holdover.arch.fields import Fields
from holdover.arch.layout import ModelLayout
from holdover.arch.mamba2 import DECAY, coupled_tensors, limited_gate, read_mamba2_layer

_NAME = "falcon_h1"


def _read_layout(fields: Fields, published: str, host: str) -> ModelLayout:
    layers, rotary = range(layer_count(fields)), partial(rotary_of, fields)
    recurrent = [read_mamba2_layer(fields, index) for index in layers]
    attention = [grouped_attention(fields, index, rotary) for index in layers]
    return assemble(_NAME, fields, (published, host), recurrent, attention)


ARCHITECTURE = Architecture(
    name=_NAME,
    model_types=("falcon_h1",),
    classes=("FalconH1ForCausalLM",),
    read_layout=_read_layout,
    read_gate=limited_gate,
    prefixes=("model.layers.{i}.",),
    published=DECAY.under("mamba."),
    loaded=DECAY.under("mamba."),
    coupled=coupled_tensors("mamba.", norm_optional=True),
)
