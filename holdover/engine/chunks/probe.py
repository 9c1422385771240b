"""What selectors ask to be run before they can choose; it leaves nothing behind."""

from __future__ import annotations

import torch

from holdover.arch.layout import AttentionLayer
from holdover.chunks import Assembly
from holdover.chunks.selectors import Deviation, QueryAttention
from holdover.engine.runner import Runner, StopForward
from holdover.engine.step import KVMode, Span, StateMode


def attention_layers(runner: Runner) -> list[AttentionLayer]:
    """The stack's attention layers, in order; a head's behind it is none of them."""
    return [layer for layer in runner.kv.layout.layers if layer.index < runner.host.layout.num_layers]


def context_deviation(runner: Runner, assembly: Assembly, rows: torch.Tensor, scratch: int) -> Deviation | None:
    """Values at the first attention layer with a layer below it, as cached and as the context gives them in one piece
    from the empty state.

    Mutates ``scratch``, which is nobody's state afterwards.

    Args:
        runner: the model on its pools.
        assembly: the prompt.
        rows: row of every position, the chunks' own copied there.
        scratch: a slot.

    Returns:
        None for a model without attention.
    """
    layers, end = attention_layers(runner), assembly.query.start
    if not layers:
        return None
    # at the bottom of the stack values depend on nothing but their own token
    compared, found = next((layer for layer in layers if layer.index), layers[0]), []

    def tap(layer: int, name: str, x: torch.Tensor) -> None:
        # the values are made from latents, which stand in the first plane
        if layer == compared.index and name == ("keys" if compared.kind == "latent" else "values"):
            found.append(x[0].transpose(0, 1).clone())
            raise StopForward

    span = Span(scratch, assembly.tokens[:end], 0, rows[:end])
    runner.run([span], kv=KVMode.DISCARD, state=StateMode.SCRATCH, tap=tap)
    runner.slots.forget(scratch)
    plane = runner.kv.planes(compared.index)[compared.kind == "heads"]
    return Deviation(plane[rows[:end].to(plane.device)], found[0])


def query_attention(
    runner: Runner, assembly: Assembly, rows: torch.Tensor, slot: int, most: int
) -> dict[int, QueryAttention]:
    """How the query sees the assembled context, by attention layer.

    Mutates ``slot``, and the query's rows.

    Args:
        runner: the model on its pools.
        assembly: the prompt.
        rows: row of every position, those of the context as the query is to see them.
        slot: the state that the query is run from.
        most: tokens of one forward.
    """
    queries: dict[int, list[torch.Tensor]] = {}
    scales: dict[int, torch.Tensor] = {}

    def tap(layer: int, name: str, x: torch.Tensor) -> None:
        if name == "queries":
            queries.setdefault(layer, []).append(x[0].clone())
        elif name == "scale":
            # as it is: reading it would wait for the device in every layer
            scales[layer] = x

    query = assembly.query
    for start in range(query.start, query.stop, most):
        stop = min(query.stop, start + most)
        span = Span(slot, assembly.tokens[start:stop], start, rows[:stop])
        runner.run([span], kv=KVMode.OVERWRITE, tap=tap)
    return {
        layer.index: QueryAttention(
            torch.cat(queries[layer.index]), _keys(runner, layer, rows[: query.start]), float(scales[layer.index])
        )
        for layer in attention_layers(runner)
    }


def _keys(runner: Runner, layer: AttentionLayer, rows: torch.Tensor) -> torch.Tensor:
    """What queries are multiplied with, ``[C, heads, D]``."""
    first, second = (plane[rows.to(plane.device)] for plane in runner.kv.planes(layer.index))
    return torch.cat([first, second], dim=-1) if layer.kind == "latent" else first
