"""``holdover inspect``: what one model keeps per sequence, from its configuration alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Annotated, Any, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from holdover.arch.layout import DTYPE_BYTES, AttentionLayer, ModelLayout, RecurrentLayer
from holdover.arch.registry import layout_from_config
from holdover.errors import HoldoverError
from holdover.weights.source import load_config

_BAD_INPUT = 2
# where output is no terminal there is no width to fit; a narrow guess would cut columns
_PIPE_WIDTH = 160
_SHOWN_RUNS = 4
Layer = TypeVar("Layer", RecurrentLayer, AttentionLayer)
_FAMILIES = {"gdn": "gated delta net", "kda": "Kimi delta attention", "mamba2": "Mamba-2"}


def inspect(
    model: Annotated[str, typer.Argument(help="Directory of a model, path of a config.json, or hub id.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    full: Annotated[bool, typer.Option("--full", help="List every layer instead of groups of equal layers.")] = False,
) -> None:
    """Show the recurrent state and the attention cache of a model: layers, shapes and bytes per sequence."""
    try:
        layout = layout_from_config(load_config(model))
    except HoldoverError as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(_BAD_INPUT) from None
    if as_json:
        typer.echo(json.dumps(as_dict(model, layout, full=full), indent=2))
    else:
        _print_tables(model, layout, full=full)


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("inspect")(inspect)


def as_dict(model: str, layout: ModelLayout, *, full: bool = False) -> dict[str, Any]:
    """What ``--json`` prints; all sizes in bytes, per sequence or per token.

    Args:
        model: the model as the user named it.
        layout: its layout.
        full: also list every layer, under ``per_layer``.
    """
    state, kv = layout.state, layout.kv
    units = state.units_per_layer
    result: dict[str, Any] = {
        "model": model,
        "architecture": layout.architecture,
        "family": _one_or_all([layer.family for layer in state.layers]),
        "layers": len(state.layers),
        "attention_layers": len(kv.layers),
        "units_per_layer": _one_or_all(units),
        "bytes": {"temporal": state.temporal_bytes, "conv": state.conv_bytes, "checkpoint": state.checkpoint_bytes},
        "kv_bytes_per_token": kv.bytes_per_token,
        "max_context": layout.max_context,
    }
    if full:
        result["per_layer"] = [_layer_dict(layer, layout) for layer in _stack(layout)]
    return result


def _layer_dict(layer: RecurrentLayer | AttentionLayer, layout: ModelLayout) -> dict[str, Any]:
    result: dict[str, Any] = {"index": layer.index, "heads": layer.heads, "d_k": layer.d_k, "d_v": layer.d_v}
    if isinstance(layer, RecurrentLayer):
        temporal, conv = _state_bytes(layer, layout)
        result |= {"kind": layer.family, "key_heads": layer.key_heads, "unit": layer.unit, "units": layer.units}
        return result | {"bytes": {"temporal": temporal, "conv": conv}}
    return result | {"kind": "attention", "cache": layer.kind, "kv_bytes_per_token": _kv_bytes(layer, layout)}


def _print_tables(model: str, layout: ModelLayout, *, full: bool) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    console.print(f"{model}: {layout.architecture}, {layout.num_layers} layers", markup=False)
    console.print(_recurrent_table(layout, full=full))
    if layout.kv.layers:
        console.print(_attention_table(layout, full=full))
    console.print(_totals(layout))


def _recurrent_table(layout: ModelLayout, *, full: bool) -> Table:
    dtypes = f"temporal {layout.state.temporal_dtype}, conv {layout.state.conv_dtype}"
    columns = ("layers", "at", "family", "heads", "d_k x d_v", "unit", "units", "conv x past", "temporal", "conv")
    table = _table(f"recurrent ({dtypes})", columns)
    for indices, layer in _groups(layout.state.layers, full=full):
        temporal, conv = (_human(size * len(indices)) for size in _state_bytes(layer, layout))
        heads = str(layer.heads) if layer.key_heads == layer.heads else f"{layer.heads} ({layer.key_heads} key)"
        unit = "head" if layer.unit == "head" else "head, key channel"
        shapes = (
            f"{layer.d_k} x {layer.d_v}",
            unit,
            f"{layer.units:,}",
            f"{layer.conv_channels:,} x {layer.conv_width - 1}",
        )
        table.add_row(str(len(indices)), _ranges(indices), _FAMILIES[layer.family], heads, *shapes, temporal, conv)
    return table


def _attention_table(layout: ModelLayout, *, full: bool) -> Table:
    columns = ("layers", "at", "cache", "heads", "key x value", "positions", "per token")
    table = _table(f"attention ({layout.kv.dtype})", columns)
    for indices, layer in _groups(layout.kv.layers, full=full):
        cache = "keys and values" if layer.kind == "heads" else "latent, shared key"
        heads = f"{layer.heads} ({layer.query_heads} query)"
        per_token = _human(_kv_bytes(layer, layout) * len(indices))
        table.add_row(
            str(len(indices)),
            _ranges(indices),
            cache,
            heads,
            f"{layer.d_k} x {layer.d_v}",
            _positions(layer),
            per_token,
        )
    return table


def _totals(layout: ModelLayout) -> Table:
    state, kv = layout.state, layout.kv
    parts = f"temporal {_human(state.temporal_bytes)}, conv {_human(state.conv_bytes)}"
    table = Table(show_header=False, box=None)
    table.add_row("checkpoint", f"{_human(state.checkpoint_bytes)} ({parts})")
    table.add_row("KV per token", _human(kv.bytes_per_token))
    if kv.bytes_per_token:
        tokens = state.checkpoint_bytes / kv.bytes_per_token
        table.add_row("one checkpoint weighs", f"as much as the KV of {tokens:,.0f} tokens")
    table.add_row("longest context", f"{layout.max_context:,} tokens")
    return table


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for column in columns:
        table.add_column(column)
    return table


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


def _one_or_all(values: Any) -> Any:
    """The value that all share, else the list of them."""
    values = list(values)
    return values[0] if len(set(values)) == 1 else values


def _ranges(indices: list[int]) -> str:
    """Indices with runs shortened, and long lists of runs cut: ``0-2, 4-6, ..., 60-62``."""
    runs = [[index for _, index in run] for _, run in groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0])]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    # a stack of dozens of layers would otherwise fill the terminal with its pattern
    shown = texts if len(texts) <= _SHOWN_RUNS else [*texts[: _SHOWN_RUNS - 2], "...", texts[-1]]
    return ", ".join(shown)


def _human(size: int) -> str:
    """Bytes in decimal units, as the design's figures are given."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} B"
