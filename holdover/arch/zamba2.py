"""Zamba2: Mamba-2 in every layer, and before some of them one of a few attention blocks that layers share.

Layers that share a block share its weights, not its keys and values: each has a cache of its own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from holdover.arch.architecture import Architecture, Gate
from holdover.arch.common import LayerKind, assemble, divided, grouped_attention, indices, listed_kinds, rotary_of
from holdover.arch.fields import Fields
from holdover.arch.layout import ModelLayout, RecurrentLayer, Rotary
from holdover.arch.mamba2 import DECAY, coupled_tensors, floored_gate, mamba2_layer
from holdover.errors import ConfigError

_NAME = "zamba2"
_KINDS: dict[str, LayerKind] = {"hybrid": "both"}
# what the host assumes where a configuration does not say
_STEP_FLOOR = 1e-3
_LONG_CONTEXT = 16_384


def _read_layout(fields: Fields, published: str, host: str) -> ModelLayout:
    kinds = _kinds(fields)
    # attention reads the hidden state beside the embeddings, so its heads share twice the hidden size
    inner, query_heads = 2 * fields.integer("hidden_size"), fields.integer("num_attention_heads")
    divided(fields, ("hidden_size", inner), ("num_attention_heads", query_heads))
    recurrent = [_recurrent(fields, index) for index in indices(kinds, "recurrent")]
    attention = [
        grouped_attention(fields, index, partial(_rotary, fields), head_dim=inner // query_heads)
        for index in indices(kinds, "attention")
    ]
    layout = assemble(_NAME, fields, (published, host), recurrent, attention)
    return replace(layout, max_context=_LONG_CONTEXT) if fields.flag("use_long_context", default=False) else layout


def _kinds(fields: Fields) -> tuple[LayerKind, ...]:
    kinds = listed_kinds(fields, "layers_block_type", "layer_types", further=_KINDS)
    if kinds is None:
        raise ConfigError("config: layers_block_type (or layer_types) is missing; wanted one entry per layer")
    return kinds


def _recurrent(fields: Fields, index: int) -> RecurrentLayer:
    heads, groups = fields.integer("n_mamba_heads"), fields.integer("mamba_ngroups", default=1)
    divided(fields, ("n_mamba_heads", heads), ("mamba_ngroups", groups))
    inner = fields.integer("mamba_expand") * fields.integer("hidden_size")
    if inner % heads:
        raise fields.invalid(("n_mamba_heads",), heads, f"a divisor of mamba_expand * hidden_size, which is {inner}")
    return mamba2_layer(
        index,
        heads=heads,
        groups=groups,
        d_state=fields.integer("mamba_d_state"),
        head_dim=inner // heads,
        conv_width=fields.integer("mamba_d_conv", minimum=2),
    )


def _rotary(fields: Fields, head_dim: int) -> Rotary | None:
    return rotary_of(fields, head_dim) if fields.flag("use_mem_rope", default=False) else None


def _read_gate(fields: Fields) -> Gate:
    return floored_gate(fields, "time_step_min", default=_STEP_FLOOR)


ARCHITECTURE = Architecture(
    name=_NAME,
    model_types=("zamba2",),
    classes=("Zamba2ForCausalLM",),
    read_layout=_read_layout,
    read_gate=_read_gate,
    prefixes=("model.layers.{i}.", "model.layers.{i}.mamba_decoder."),
    published=DECAY.under("mamba."),
    loaded=DECAY.under("mamba."),
    coupled=coupled_tensors("mamba."),
)
