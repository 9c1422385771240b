"""What one model keeps per sequence, from its configuration alone: as JSON, and as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from holdover.arch.layout import DTYPE_BYTES, AttentionLayer, ModelLayout, RecurrentLayer
from holdover.report.tables import Table, ranges, size

Layer = TypeVar("Layer", RecurrentLayer, AttentionLayer)
_FAMILIES = {"gdn": "gated delta net", "kda": "Kimi delta attention", "mamba2": "Mamba-2", "rwkv6": "RWKV-6"}
_RECURRENT = ("layers", "at", "family", "heads", "d_k x d_v", "unit", "units", "conv x past", "temporal", "conv")
_ATTENTION = ("layers", "at", "cache", "heads", "key x value", "positions", "per token")


def layout_facts(model: str, layout: ModelLayout, *, full: bool = False) -> dict[str, Any]:
    """The layout as JSON; all sizes in bytes, per sequence or per token.

    Args:
        model: the model as the user named it.
        layout: its layout.
        full: also list every layer, under ``per_layer``.
    """
    state, kv = layout.state, layout.kv
    facts: dict[str, Any] = {
        "model": model,
        "architecture": layout.architecture,
        "family": _one_or_all(layer.family for layer in state.layers),
        "layers": len(state.layers),
        "attention_layers": len(kv.layers),
        "units_per_layer": _one_or_all(state.units_per_layer),
        "bytes": {"temporal": state.temporal_bytes, "conv": state.conv_bytes, "checkpoint": state.checkpoint_bytes},
        "kv_bytes_per_token": kv.bytes_per_token,
        "max_context": layout.max_context,
    }
    if full:
        facts["per_layer"] = [_layer_facts(layer, layout) for layer in _stack(layout)]
    return facts


def layout_tables(layout: ModelLayout, *, full: bool = False) -> list[Table]:
    """The recurrent layers, the attention layers if there are any, and the totals.

    Args:
        layout: a model's layout.
        full: give every layer a row instead of each set of equal ones.
    """
    dtypes = f"temporal {layout.state.temporal_dtype}, conv {layout.state.conv_dtype}"
    recurrent = [_recurrent_row(*group, layout) for group in _groups(layout.state.layers, full=full)]
    attention = [_attention_row(*group, layout) for group in _groups(layout.kv.layers, full=full)]
    tables = [Table(f"recurrent ({dtypes})", _RECURRENT, tuple(recurrent))]
    if attention:
        tables.append(Table(f"attention ({layout.kv.dtype})", _ATTENTION, tuple(attention)))
    return [*tables, _totals(layout)]


def _layer_facts(layer: RecurrentLayer | AttentionLayer, layout: ModelLayout) -> dict[str, Any]:
    facts: dict[str, Any] = {"index": layer.index, "heads": layer.heads, "d_k": layer.d_k, "d_v": layer.d_v}
    if isinstance(layer, RecurrentLayer):
        temporal, conv = _state_bytes(layer, layout)
        facts |= {"kind": layer.family, "key_heads": layer.key_heads, "unit": layer.unit, "units": layer.units}
        return facts | {"bytes": {"temporal": temporal, "conv": conv}}
    return facts | {"kind": "attention", "cache": layer.kind, "kv_bytes_per_token": _kv_bytes(layer, layout)}


def _recurrent_row(indices: list[int], layer: RecurrentLayer, layout: ModelLayout) -> tuple[str, ...]:
    temporal, conv = (size(count * len(indices)) for count in _state_bytes(layer, layout))
    heads = str(layer.heads) if layer.key_heads == layer.heads else f"{layer.heads} ({layer.key_heads} key)"
    unit = "head" if layer.unit == "head" else "head, key channel"
    past = f"{layer.conv_channels:,} x {layer.conv_width - 1}"
    shape = (heads, f"{layer.d_k} x {layer.d_v}", unit, f"{layer.units:,}", past)
    return (str(len(indices)), ranges(indices), _FAMILIES[layer.family], *shape, temporal, conv)


def _attention_row(indices: list[int], layer: AttentionLayer, layout: ModelLayout) -> tuple[str, ...]:
    cache = "keys and values" if layer.kind == "heads" else "latent, shared key"
    shape = (f"{layer.heads} ({layer.query_heads} query)", f"{layer.d_k} x {layer.d_v}", _positions(layer))
    return (str(len(indices)), ranges(indices), cache, *shape, size(_kv_bytes(layer, layout) * len(indices)))


def _totals(layout: ModelLayout) -> Table:
    state, kv = layout.state, layout.kv
    parts = f"temporal {size(state.temporal_bytes)}, conv {size(state.conv_bytes)}"
    rows = [("checkpoint", f"{size(state.checkpoint_bytes)} ({parts})")]
    if kv.bytes_per_token:
        tokens = state.checkpoint_bytes / kv.bytes_per_token
        rows.append(("KV per token", size(kv.bytes_per_token)))
        rows.append(("one checkpoint weighs", f"as much as the KV of {tokens:,.0f} tokens"))
    rows.append(("longest context", f"{layout.max_context:,} tokens"))
    return Table("per sequence", ("", ""), tuple(rows))


def _positions(layer: AttentionLayer) -> str:
    if layer.rotary is None:
        return "none"
    scaling = "" if layer.rotary.scaling == "default" else f", {layer.rotary.scaling}"
    return f"rotary, {layer.rotary.dims} dims, base {layer.rotary.base:,.0f}{scaling}"


def _groups(layers: Sequence[Layer], *, full: bool) -> list[tuple[list[int], Layer]]:
    """Indices and one example of each set of layers that differ in their index alone, in order of appearance."""
    if full:
        return [([layer.index], layer) for layer in layers]
    groups: dict[RecurrentLayer | AttentionLayer, tuple[list[int], Layer]] = {}
    for layer in layers:
        groups.setdefault(replace(layer, index=0), ([], layer))[0].append(layer.index)
    return list(groups.values())


def _state_bytes(layer: RecurrentLayer, layout: ModelLayout) -> tuple[int, int]:
    """(temporal, conv) bytes of one layer."""
    state = layout.state
    return layer.temporal_numel * DTYPE_BYTES[state.temporal_dtype], layer.conv_numel * DTYPE_BYTES[state.conv_dtype]


def _kv_bytes(layer: AttentionLayer, layout: ModelLayout) -> int:
    return layer.numel_per_token * DTYPE_BYTES[layout.kv.dtype]


def _stack(layout: ModelLayout) -> list[RecurrentLayer | AttentionLayer]:
    layers: list[RecurrentLayer | AttentionLayer] = [*layout.state.layers, *layout.kv.layers]
    return sorted(layers, key=lambda layer: layer.index)


def _one_or_all(values: Iterable[Any]) -> Any:
    """The value that all share, else the list of them."""
    values = list(values)
    return values[0] if len(set(values)) == 1 else values
