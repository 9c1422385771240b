"""RWKV-6 (Finch): every layer recurrent, decay per (head, key channel), no attention; files only.

The state of a layer is one matrix ``[d_k, d_v]`` a head and two token shifts, the last input of its time mix and of its
channel mix: a convolution of width 2 over twice the hidden size. The decay at a token is
``exp(-exp(time_decay + lora(x)))``.
"""

from __future__ import annotations

from holdover.arch.architecture import Architecture, DecayNames, Gate
from holdover.arch.common import assemble, divided, layer_count
from holdover.arch.fields import Fields
from holdover.arch.layout import ModelLayout, RecurrentLayer

_NAME = "rwkv6"
_GATE = Gate("exponential")
# nothing in the model limits a sequence; converters of its files write this length
_MAX_CONTEXT = 1 << 20


def _read_layout(fields: Fields, published: str, host: str) -> ModelLayout:
    recurrent = [_recurrent(fields, index) for index in range(layer_count(fields))]
    return assemble(_NAME, fields, (published, host), recurrent, (), max_context=_MAX_CONTEXT)


def _recurrent(fields: Fields, index: int) -> RecurrentLayer:
    hidden, width = fields.integer("hidden_size"), fields.integer("head_size")
    inner = fields.integer("attention_hidden_size", default=hidden)
    divided(fields, ("attention_hidden_size", inner), ("head_size", width))
    heads = inner // width
    return RecurrentLayer(
        index=index,
        family="rwkv6",
        heads=heads,
        key_heads=heads,
        d_k=width,
        d_v=width,
        unit="channel",
        conv_channels=2 * hidden,
        conv_width=2,
        gate=_GATE.form,
    )


ARCHITECTURE = Architecture(
    name=_NAME,
    model_types=("rwkv6",),
    classes=("Rwkv6ForCausalLM",),
    read_layout=_read_layout,
    read_gate=lambda fields: _GATE,
    prefixes=("rwkv.blocks.{i}.",),
    published=DecayNames(None, "attention.time_decay"),
    loaded=DecayNames(None, "attention.time_decay"),
    hosted=False,
)
