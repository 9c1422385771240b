"""Attention of one token of each sequence in C: `holdover.ops.attention.torch.paged_attention` with T = 1."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from holdover.ops.native.arguments import check_shapes, room, rows, threads
from holdover.ops.native.library import Attention, call

# rows that are worked on together, as in the C source
_PART = 256


def attend_one(q: Tensor, keys: Tensor, values: Tensor, sequences: Sequence[Tensor], scale: float) -> Tensor:
    """Rows are read where they lie.

    Args:
        q: ``[B, 1, Hq, D]``, rotated already.
        keys: plane of one row per token, fp32 ``[R, Hkv, D]``, contiguous within a row.
        values: plane, fp32 ``[R, Hkv, Dv]``, likewise.
        sequences: per sequence the row of every token so far, int64, at least one.
        scale: factor on the scores.

    Returns:
        fp32 ``[B, 1, Hq, Dv]``.

    Raises:
        ValueError: a tensor is not of the shape that the others ask for.
        IndexError: a row is not in the planes.
    """
    (batch, _, query_heads, d_k), (count, heads, d_v) = q.shape, values.shape
    if not heads or query_heads % heads:
        raise ValueError(f"{query_heads} query heads, want a multiple of the {heads} KV heads")
    check_shapes([q, keys], [(batch, 1, query_heads, d_k), (count, heads, d_k)])
    if not all(x.dtype is torch.float32 and x.is_cpu and x[:1].is_contiguous() for x in (keys, values)):
        raise ValueError(f"planes are {keys.dtype} and {values.dtype} on {keys.device}, want fp32 rows in one piece")
    lengths = [len(sequence) for sequence in sequences]
    if len(lengths) != batch or not all(lengths):
        raise ValueError(f"sequences of the lengths {lengths}, want {batch} of at least one row")
    together = sequences[0].contiguous() if batch == 1 else torch.cat(list(sequences))
    if together.dtype is not torch.int64 or together.dim() != 1:
        raise ValueError(f"rows are {together.dtype} {list(together.shape)}, want int64 in one axis")
    first, last = together.aminmax()
    if int(first) < 0 or int(last) >= count:
        raise IndexError(f"rows {int(first)} to {int(last)} are not all among the {count} of the planes")
    queries, ends = rows(q, 2), torch.tensor(list(accumulate(lengths)), device="cpu")
    queries = queries if queries.stride(0) == query_heads * d_k else queries.contiguous()
    parts = sum(-(-length // _PART) for length in lengths)
    sums, out = room(parts, query_heads, d_v + 2), room(batch, 1, query_heads, d_v)
    call(
        Attention(
            batch,
            heads,
            query_heads // heads,
            d_k,
            d_v,
            threads(len(together) * heads * (d_k + d_v)),
            parts,
            queries.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            keys.stride(0),
            values.stride(0),
            together.data_ptr(),
            ends.data_ptr(),
            scale,
            sums.data_ptr(),
            out.data_ptr(),
        )
    )
    return out
