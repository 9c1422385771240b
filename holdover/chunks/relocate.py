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
    origin = torch.cat([torch.arange(c.source, c.source + c.length) for c in copies])
    place = torch.cat([torch.arange(c.target, c.target + c.length) for c in copies])
    source = torch.cat([entries[c.chunk].rows[c.source : c.source + c.length] for c in copies])
    target = rows[place]
    kv.copy(source, target)
    moved = origin != place
    if not moved.any():
        return
    for index, turn in rotations.items():
        # latent attention rotates the shared key part, which is its second plane
        plane = kv.planes(index)[kv.layer(index).kind == "latent"]
        there = target[moved].to(plane.device)
        plane.index_copy_(0, there, rerotate(plane[there], origin[moved], place[moved], turn))
