"""Bringing a chunk's KV rows to another place in a prompt: into rows of the request's own, keys rotated on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from holdover.arch.layout import KVLayout
from holdover.chunks.assembly import Copy
from holdover.chunks.entry import ChunkEntry
from holdover.ops.rotary import frequencies, rerotate
from holdover.store import KVPool


def layer_frequencies(
    layout: KVLayout, device: torch.device, parameters: Mapping[str, Any] | None = None
) -> dict[int, Tensor]:
    """Frequencies of every attention layer that rotates its keys, fp32 ``[dims // 2]``; layers without are absent.

    Args:
        layout: the attention layers.
        device: where the rows are.
        parameters: the configuration's ``rope_parameters``, if a layer's scaling is not ``default``.

    Raises:
        ConfigError: a layer's keys cannot be moved (see `holdover.ops.rotary.frequencies`).
    """
    rotated = [(layer.index, layer.rotary) for layer in layout.layers if layer.rotary is not None]
    return {index: frequencies(rotary, parameters).to(device) for index, rotary in rotated}


def relocate(
    kv: KVPool, entries: Sequence[ChunkEntry], copies: Sequence[Copy], rows: Tensor, rotations: Mapping[int, Tensor]
) -> None:
    """Copy rows out of chunks into a request's own, and rotate their keys to where they now stand.

    Mutates the rows of the copies' targets only. Rows that stay at their position are the same bits.

    Args:
        kv: the pool of both.
        entries: the prompt's chunks, in order.
        copies: what to copy.
        rows: the request's row of every position, int64.
        rotations: as `layer_frequencies` gives them.
    """
    if not copies:
        return
    source, origin, place = _rows_of(entries, copies)
    moved = (origin != place).nonzero()[:, 0]
    # once, and not for every layer
    source, target, moved = (x.to(kv.device) for x in (source, rows[place], moved))
    kv.copy(source, target)
    if not len(moved):
        return
    there, origin, place = target[moved], origin.to(kv.device)[moved], place.to(kv.device)[moved]
    for index, turn in rotations.items():
        # latent attention rotates the shared key part, which is its second plane
        plane = kv.planes(index)[kv.layer(index).kind == "latent"]
        plane.index_copy_(0, there, rerotate(plane[there], origin, place, turn))


def _rows_of(entries: Sequence[ChunkEntry], copies: Sequence[Copy]) -> tuple[Tensor, Tensor, Tensor]:
    """Of every row that is copied, int64 ``[n]`` each: itself, its position in its chunk, and in the prompt."""
    chunk, first, target, length = torch.tensor(copies).unbind(1)
    within = torch.arange(int(length.sum())) - (length.cumsum(0) - length).repeat_interleave(length)
    origin, place = (start.repeat_interleave(length) + within for start in (first, target))
    lengths = torch.tensor([len(entry) for entry in entries])
    before = (lengths.cumsum(0) - lengths)[chunk].repeat_interleave(length)
    return torch.cat([entry.rows for entry in entries])[before + origin], origin, place
