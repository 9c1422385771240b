"""Decode attention over one row per token on a GPU: sequences of any lengths in one launch, fit for a CUDA graph.

Grids follow from shapes alone; which rows a sequence has, and how many, is read from device memory by the kernels.
Nothing here waits for the device or reads back from it, and only outputs and workspaces are allocated, so that what was
captured once serves every later step of as many sequences.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdover.errors import ConfigError
from holdover.ops.attention.kernels.attend import attend_kernel, combine_kernel
from holdover.ops.attention.kernels.tiling import Shapes, Tiling, choose, padded

DTYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
INTERPRETED = not isinstance(attend_kernel, triton.JITFunction)
# elements of all parts' outputs that a program combines: 32 registers a thread
COMBINED = 4096


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    seats: Tensor,
    lengths: Tensor,
    scale: float,
    window: int | None = None,
    tiling: Tiling | None = None,
) -> Tensor:
    """Causal attention of the T newest tokens of each sequence over all of its tokens.

    Accumulates in fp32. Products are taken in the common dtype of q and the planes, in full precision if that is fp32.

    Args:
        q: ``[B, T, Hq, D]``, rotated already; may be strided over all axes but the last.
        keys: plane of one row per token ``[R, Hkv, D]``; may be strided over rows and heads.
        values: plane ``[R, Hkv, Dv]`` of the same dtype.
        table: row of every token of every seat ``[N, L]`` int32; what lies past a length is never read.
        seats: seat of each sequence ``[B]``, int32 or int64.
        lengths: tokens of each sequence, the T new ones included ``[B]`` int32; 0 makes a padding row, whose output is
            zero.
        scale: factor on the scores.
        window: tokens that a query sees, itself included, or None for all.
        tiling: block sizes, chosen by the shapes if None.

    Returns:
        ``[B, T, Hq, Dv]`` in q's dtype; a KV head serves ``Hq // Hkv`` consecutive query heads.

    Raises:
        ConfigError: a tensor has another layout or dtype than the kernels read.
    """
    # a power of two first: padding all of a width of 192 or 576 would cost up to twice its products
    first = 1 << (keys.shape[-1].bit_length() - 1)
    rest = keys.shape[-1] > first
    return _attend(
        q[..., :first],
        q[..., first:] if rest else None,
        keys[..., :first],
        keys[..., first:] if rest else None,
        values,
        (table, seats, lengths),
        scale,
        window,
        tiling,
    )


def paged_latent_attention(
    q_nope: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    rope: Tensor,
    table: Tensor,
    seats: Tensor,
    lengths: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    scale: float,
    tiling: Tiling | None = None,
) -> Tensor:
    """Multi-head latent attention with the key and value expansions absorbed into query and output.

    Args:
        q_nope: ``[B, T, H, d_n]``.
        q_rope: ``[B, T, H, d_r]``, rotated already if the model rotates.
        latent: plane of normalised latents ``[R, 1, c]``.
        rope: plane of the key part that all heads share ``[R, 1, d_r]``.
        table: as in `paged_attention`.
        seats: as in `paged_attention`.
        lengths: as in `paged_attention`.
        w_k: expansion of a latent to keys ``[H, d_n, c]``.
        w_v: expansion of a latent to values ``[H, d_v, c]``.
        scale: factor on the scores.
        tiling: block sizes, chosen by the shapes if None.

    Returns:
        ``[B, T, H, d_v]`` in q_nope's dtype; a view of heads that lie one behind the other.

    Raises:
        ConfigError: a tensor has another layout or dtype than the kernels read.
    """
    absorbed = _each_head(q_nope, w_k)
    mixed = _attend(absorbed, q_rope, latent, rope, None, (table, seats, lengths), scale, None, tiling)
    return _each_head(mixed, w_v.mT)


def _each_head(x: Tensor, matrices: Tensor) -> Tensor:
    """``x [B, T, H, n]`` times ``matrices [H, n, m]``: ``[B, T, H, m]``."""
    rows = x.flatten(0, 1).transpose(0, 1)  # [H, B * T, n]
    out: Tensor = torch.bmm(rows, matrices).transpose(0, 1).unflatten(0, x.shape[:2])
    return out


def _attend(
    q: Tensor,
    q_rest: Tensor | None,
    keys: Tensor,
    keys_rest: Tensor | None,
    values: Tensor | None,
    places: tuple[Tensor, Tensor, Tensor],
    scale: float,
    window: int | None,
    tiling: Tiling | None,
) -> Tensor:
    """Attention with keys in one or two parts; without ``values`` the keys' first part serves."""
    table, seats, lengths = places
    batch, tokens, heads, width = q.shape
    kv_heads, rest = keys.shape[1], 0 if keys_rest is None else keys_rest.shape[-1]
    value_width = width if values is None else values.shape[-1]
    _check([x for x in (keys, keys_rest, values) if x is not None], heads, table, lengths)
    q, q_rest = _packed(q), None if q_rest is None else _packed(q_rest)
    dtype = torch.promote_types(q.dtype, keys.dtype)
    shapes = Shapes(
        batch=batch,
        kv_heads=kv_heads,
        queries=tokens * heads // kv_heads,
        span=table.shape[1] if window is None else min(table.shape[1], window + tokens - 1),
        key_columns=padded(width) + (padded(rest) if rest else 0),
        value_columns=padded(value_width),
        shared=values is None,
        itemsize=dtype.itemsize,
    )
    tiling = tiling or choose(shapes)
    splits, cells = tiling.splits(shapes.span), batch * tokens * heads
    out = torch.empty(batch, tokens, heads, value_width, dtype=q.dtype, device=q.device)
    partial = weights = None
    if splits > 1:
        partial = torch.empty(splits, cells, value_width, dtype=torch.float32, device=q.device)
        weights = torch.empty(splits, cells, dtype=torch.float32, device=q.device)
    attend_kernel[(batch * splits * kv_heads * triton.cdiv(shapes.queries, tiling.rows),)](
        q, q_rest, keys, keys_rest, values, table, seats, lengths, out, partial, weights,
        scale * math.log2(math.e), window, splits, tiling.parts, tiling.longest, cells,
        *_strides(q, 3), *_strides(q_rest, 3), *_strides(keys, 2), *_strides(keys_rest, 2), *_strides(values, 2),
        table.stride(0),
        tokens=tokens, heads=heads, kv_heads=kv_heads,
        width=width, columns=padded(width), rest_width=rest, rest_columns=padded(rest) if rest else 0,
        value_width=value_width, value_columns=padded(value_width),
        # the interpreter would multiply the bits of bfloat16
        dtype=tl.float32 if INTERPRETED else DTYPES[dtype],
        block=tiling.block, rows=tiling.rows, stages=tiling.stages, interpreted=INTERPRETED, num_warps=tiling.warps,
    )  # fmt: skip
    if splits > 1:
        padded_splits = triton.next_power_of_2(splits)
        columns = min(padded(value_width), max(1, COMBINED // padded_splits))
        combine_kernel[(cells * triton.cdiv(value_width, columns),)](
            lengths, out, partial, weights, window, tiling.parts, tiling.longest, cells,
            tokens=tokens, heads=heads, value_width=value_width, padded_splits=padded_splits, block=tiling.block,
            columns=columns,
        )  # fmt: skip
    return out


def _check(planes: list[Tensor], heads: int, table: Tensor, lengths: Tensor) -> None:
    """Refuse what the kernels would read wrongly."""
    dtypes = {plane.dtype for plane in planes}
    if len(dtypes) > 1 or not dtypes <= DTYPES.keys():
        raise ConfigError(f"planes are {sorted(map(str, dtypes))}, want one of {sorted(map(str, DTYPES))}")
    if any(plane.stride(-1) != 1 for plane in planes):
        raise ConfigError(f"planes have strides {[plane.stride() for plane in planes]}, want 1 within a head's row")
    if heads % planes[0].shape[1]:
        raise ConfigError(f"{heads} query heads over {planes[0].shape[1]} KV heads, want a multiple of them")
    if (table.dtype, table.stride(-1), lengths.dtype) != (torch.int32, 1, torch.int32):
        raise ConfigError(
            f"table is {table.dtype} with strides {table.stride()}, lengths are {lengths.dtype};"
            " want int32 and consecutive positions"
        )


def _packed(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _strides(x: Tensor | None, axes: int) -> tuple[int, ...]:
    return (0,) * axes if x is None else x.stride()[:axes]
