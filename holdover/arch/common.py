"""What every architecture reads the same way: layer kinds, rotary embedding, and the parts of the whole layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from holdover.arch.fields import Fields
from holdover.arch.layout import AttentionLayer, KVLayout, ModelLayout, RecurrentLayer, Rotary, StateLayout
from holdover.errors import UnsupportedArchitectureError

# both: attention and a recurrence in one layer; neither: an MLP in a layer of its own
LayerKind = Literal["recurrent", "attention", "both", "neither"]

# hosts have renamed the kinds over time; files keep the name of their day
_KINDS: dict[str, LayerKind] = {
    "linear_attention": "recurrent",
    "mamba": "recurrent",
    "full_attention": "attention",
    "attention": "attention",
    "deepseek_sparse_attention": "attention",
    "indexed_attention": "attention",
}
# far above any model; keeps a wrong number from allocating without end
_MOST_LAYERS = 10_000
# what the host assumes where a configuration has no base
_DEFAULT_ROPE_BASE = 10_000.0


def layer_count(fields: Fields) -> int:
    """Layers in the stack."""
    return fields.integer("num_hidden_layers", maximum=_MOST_LAYERS)


def listed_kinds(
    fields: Fields, *names: str, counted: bool = True, further: Mapping[str, LayerKind] | None = None
) -> tuple[LayerKind, ...] | None:
    """The kind of each layer from a list of type names, or None where there is no list.

    Args:
        fields: the configuration.
        names: where the list may be; the first one set wins.
        counted: whether the list must be as long as the configuration's number of layers, or says how many there are.
        further: type names that only this architecture has.
    """
    name = next((name for name in names if fields.has(name)), None)
    if name is None:
        return None
    types, known = fields.sequence(name), {**_KINDS, **(further or {})}
    if counted and len(types) != layer_count(fields):
        raise fields.invalid((name,), types, f"{layer_count(fields)} entries (num_hidden_layers), not {len(types)}")
    for entry in types:
        if not isinstance(entry, str) or entry not in known:
            raise fields.invalid((name,), entry, f"entries out of {', '.join(known)}")
    return tuple(known[entry] for entry in types)


def grouped_attention(
    fields: Fields, index: int, rotary: Callable[[int], Rotary | None], *, head_dim: int | None = None
) -> AttentionLayer:
    """Layer ``index`` of grouped-query attention.

    Args:
        fields: the configuration.
        index: the layer's index.
        rotary: from dimensions of a key head to its rotary embedding, None for none.
        head_dim: dimensions of a head; None for ``head_dim`` or, without it, its share of the hidden size.
    """
    query_heads = fields.integer("num_attention_heads")
    heads = fields.integer("num_key_value_heads", default=query_heads)
    divided(fields, ("num_attention_heads", query_heads), ("num_key_value_heads", heads))
    if head_dim is None and not fields.has("head_dim"):
        hidden = fields.integer("hidden_size")
        divided(fields, ("hidden_size", hidden), ("num_attention_heads", query_heads))
        head_dim = hidden // query_heads
    width = fields.integer("head_dim") if head_dim is None else head_dim
    return AttentionLayer(index, "heads", heads, width, width, query_heads, rotary(width))


def read_rotary(fields: Fields, head_dim: int, *, partial: float = 1.0) -> Rotary:
    """The rotary embedding from ``rope_parameters``, or from the older flat keys and ``rope_scaling``.

    Args:
        fields: the configuration.
        head_dim: dimensions of a key head.
        partial: rotated fraction of a head where the configuration does not say.
    """
    rope = _rope(fields)
    holder = rope if rope.has("partial_rotary_factor") else fields
    fraction = holder.number("partial_rotary_factor", default=partial)
    dims = int(head_dim * fraction)
    if not 0 < dims <= head_dim or dims % 2:
        wanted = f"a fraction of the head dimension {head_dim} that gives an even number of dimensions"
        raise holder.invalid(("partial_rotary_factor",), fraction, wanted)
    return rotary_of(fields, dims)


def rotary_of(fields: Fields, dims: int) -> Rotary:
    """The rotary embedding of ``dims`` dimensions, whatever fraction of a head the configuration speaks of."""
    rope = _rope(fields)
    holder = rope if rope.has("rope_theta") else fields
    base = holder.number("rope_theta", default=_DEFAULT_ROPE_BASE)
    if base <= 0:
        raise holder.invalid(("rope_theta",), base, "a positive number")
    scaling = rope.text("rope_type", "type", default="default")
    # interleaved multimodal sections rotate text exactly as the default does
    return Rotary(dims=dims, base=base, scaling="default" if scaling == "mrope" else scaling)


def _rope(fields: Fields) -> Fields:
    return fields.section("rope_parameters" if fields.has("rope_parameters") else "rope_scaling")


def assemble(
    name: str,
    fields: Fields,
    dtypes: tuple[str, str],
    recurrent: Sequence[RecurrentLayer],
    attention: Sequence[AttentionLayer],
    *,
    max_context: int | None = None,
    num_layers: int | None = None,
) -> ModelLayout:
    """The whole layout.

    Args:
        name: registry name.
        fields: the configuration.
        dtypes: dtype of the published weights, and of conv state and KV in the host.
        recurrent: recurrent layers in stack order.
        attention: attention layers in stack order.
        max_context: longest sequence in tokens where the configuration does not say; None if it must say.
        num_layers: layers in the stack; None for the configuration's number of layers.

    Raises:
        UnsupportedArchitectureError: there is no recurrent layer.
    """
    if not recurrent:
        raise UnsupportedArchitectureError(
            f"this {name} model has no recurrent layer, only attention: there is no recurrent state to manage"
        )
    published, host = dtypes
    return ModelLayout(
        architecture=name,
        state=StateLayout(tuple(recurrent), conv_dtype=host),
        kv=KVLayout(tuple(attention), dtype=host),
        num_layers=layer_count(fields) if num_layers is None else num_layers,
        vocab_size=fields.integer("vocab_size"),
        max_context=fields.integer("max_position_embeddings", "model_max_length", default=max_context),
        dtype=published,
    )


def indices(kinds: Sequence[LayerKind], kind: Literal["recurrent", "attention"]) -> list[int]:
    """Indices of the layers that have a part of ``kind``."""
    return [index for index, entry in enumerate(kinds) if entry in (kind, "both")]


def divided(fields: Fields, total: tuple[str, int], part: tuple[str, int]) -> None:
    """Raise ConfigError unless ``part`` divides ``total``; both are (key, value)."""
    if total[1] % part[1]:
        raise fields.invalid((total[0],), total[1], f"a multiple of {part[0]}, which is {part[1]}")
