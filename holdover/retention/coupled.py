"""What must move together when heads are permuted or split over ranks (DASC App. B.1, step 7 of Figure 9a)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from holdover.arch.architecture import Architecture, CoupledTensor, Segment
from holdover.arch.layout import RecurrentLayer
from holdover.errors import PlanError


def bundle_size(layer: RecurrentLayer) -> int:
    """Value heads of one bundle (B).

    The heads of one key head, or of one group of Mamba-2. A single key head is on every rank however the value heads
    are split, so it binds none of them together.
    """
    return 1 if layer.key_heads == 1 else layer.heads // layer.key_heads


def permute_coupled(
    tensors: Mapping[str, Tensor],
    architecture: Architecture,
    layer: RecurrentLayer,
    heads: Tensor,
    *,
    form: Literal["published", "loaded"] = "published",
) -> dict[str, Tensor]:
    """Bring every parameter that is coupled to heads into the order of ``heads``.

    Args:
        tensors: one recurrent layer's parameters by their names below the layer's prefix, not quantised.
        architecture: says which of them are coupled, and along which axis.
        layer: the layer.
        heads: value heads wanted, int64, those of one key head side by side: a permutation of all, or the part of
            one that a rank computes, which gives the rank's shard.
        form: where the tensors have these names.

    Returns:
        New tensors for the coupled parameters; the others as they are.

    Raises:
        PlanError: the order tears a bundle apart, or a coupled parameter is missing or has another shape (as
            quantised weights do).
    """
    index = {"value": heads, "key": _key_heads(layer, heads)}
    permuted = dict(tensors)
    for coupled in architecture.coupled_in(form):
        tensor = tensors.get(coupled.name)
        if tensor is None:
            if coupled.optional:
                continue
            raise PlanError(f"{coupled.name} is missing: all that is coupled to heads must be permuted together")
        permuted[coupled.name] = _take(tensor, coupled, layer, index)
    return permuted


def _key_heads(layer: RecurrentLayer, heads: Tensor) -> Tensor:
    """Key heads that ``heads`` read, in order; each serves equally many of them."""
    size = layer.heads // layer.key_heads
    keys: Tensor
    keys, counts = torch.unique_consecutive(heads // size, return_counts=True)
    if len(keys.unique()) < len(keys) or len(counts.unique()) > 1:
        raise PlanError(f"the order {heads.tolist()} tears apart the {size} heads that share a key head")
    return keys


def _take(tensor: Tensor, coupled: CoupledTensor, layer: RecurrentLayer, index: Mapping[str, Tensor]) -> Tensor:
    """The entries of the indexed heads along the coupled axis, segment by segment."""
    axis, wanted = coupled.axis, coupled.length(layer)
    if tensor.dim() <= axis or tensor.shape[axis] != wanted:
        raise PlanError(
            f"{coupled.name} is {list(tensor.shape)}; wanted {wanted} entries along axis {axis}, as unquantised "
            "weights have"
        )
    sizes = [segment.size(layer) for segment in coupled.segments]
    if coupled.by_key_head:
        whole = tensor.unflatten(axis, (layer.key_heads, -1))
        parts = whole.split([size // layer.key_heads for size in sizes], dim=axis + 1)
        blocks = [part.flatten(axis, axis + 1) for part in parts]
    else:
        blocks = list(tensor.split(sizes, dim=axis))
    taken = [
        _heads_of(block, segment, layer, axis, index[segment.role])
        for block, segment in zip(blocks, coupled.segments, strict=True)
    ]
    if not coupled.by_key_head:
        return torch.cat(taken, dim=axis)
    by_head = [block.unflatten(axis, (len(index["key"]), -1)) for block in taken]
    return torch.cat(by_head, dim=axis + 1).flatten(axis, axis + 1)


def _heads_of(part: Tensor, segment: Segment, layer: RecurrentLayer, axis: int, heads: Tensor) -> Tensor:
    count = layer.heads if segment.role == "value" else layer.key_heads
    by_head: Tensor = part.unflatten(axis, (count, -1))
    return by_head.index_select(axis, heads).flatten(axis, axis + 1)
