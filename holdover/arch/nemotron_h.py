"""Nemotron-H and Nemotron 3: Mamba-2, attention without positions and MLPs, each a layer of its own."""

from __future__ import annotations

from holdover.arch.architecture import Architecture, Gate
from holdover.arch.common import LayerKind, assemble, divided, grouped_attention, indices, listed_kinds
from holdover.arch.fields import Fields
from holdover.arch.layout import ModelLayout, RecurrentLayer
from holdover.arch.mamba2 import DECAY, coupled_tensors, floored_gate, mamba2_layer
from holdover.errors import ConfigError

_NAME = "nemotron_h"
_KINDS: dict[str, LayerKind] = {"mlp": "neither", "moe": "neither"}
_LETTERS: dict[str, LayerKind] = {"M": "recurrent", "*": "attention", "-": "neither", "E": "neither"}
# what the host assumes where a configuration does not say
_HEAD_DIM = 128
_STEP_FLOOR = 1e-3


def _read_layout(fields: Fields, published: str, host: str) -> ModelLayout:
    kinds = _kinds(fields)
    # the host reads head_dim only; older files have the same number under another name
    head_dim = fields.integer("head_dim", "attention_head_dim", default=_HEAD_DIM)
    recurrent = [_recurrent(fields, index) for index in indices(kinds, "recurrent")]
    attention = [
        grouped_attention(fields, index, lambda _: None, head_dim=head_dim) for index in indices(kinds, "attention")
    ]
    return assemble(_NAME, fields, (published, host), recurrent, attention, num_layers=len(kinds))


def _kinds(fields: Fields) -> tuple[LayerKind, ...]:
    """Kinds from a list (native) or a letter a layer (published); num_hidden_layers decides nothing, as in the host."""
    kinds = listed_kinds(fields, "layers_block_type", "layer_types", counted=False, further=_KINDS)
    if kinds is not None:
        return kinds
    if not fields.has("hybrid_override_pattern"):
        raise ConfigError("config: layers_block_type and hybrid_override_pattern are missing; wanted one of them")
    pattern = fields.text("hybrid_override_pattern")
    if not pattern or set(pattern) - set(_LETTERS):
        wanted = f"one letter a layer out of {' '.join(_LETTERS)}"
        raise fields.invalid(("hybrid_override_pattern",), pattern, wanted)
    return tuple(_LETTERS[letter] for letter in pattern)


def _recurrent(fields: Fields, index: int) -> RecurrentLayer:
    heads, groups = fields.integer("mamba_num_heads"), fields.integer("n_groups", "mamba_n_groups")
    divided(fields, ("mamba_num_heads", heads), ("n_groups", groups))
    return mamba2_layer(
        index,
        heads=heads,
        groups=groups,
        d_state=fields.integer("ssm_state_size"),
        head_dim=fields.integer("mamba_head_dim"),
        conv_width=fields.integer("conv_kernel", "mamba_d_conv", minimum=2),
    )


def _read_gate(fields: Fields) -> Gate:
    return floored_gate(fields, "time_step_min", "mamba_dt_min", default=_STEP_FLOOR)


ARCHITECTURE = Architecture(
    name=_NAME,
    model_types=("nemotron_h",),
    classes=("NemotronHForCausalLM",),
    read_layout=_read_layout,
    read_gate=_read_gate,
    prefixes=("backbone.layers.{i}.", "model.layers.{i}."),
    published=DECAY.under("mixer."),
    loaded=DECAY.under("mixer."),
    coupled=coupled_tensors("mixer."),
)
