"""Prefill through the kernels of fla (flash-linear-attention), where it is installed and there is a CUDA GPU.

Importing fla needs a GPU, so the first call that its kernels serve imports it, and no call before that.

The chunked kernels multiply in the inputs' dtype and keep the state in fp32: a bf16 model loses what bf16 rounds away.
Fp32 inputs would be rounded to TF32, for a relative error of 1e-3, and fp16 cannot hold every state that is kept
between chunks. Both stay with the family's own ``sequence``, and so does a single token.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from holdover.ops.recurrence.gdn import torch as gdn
from holdover.ops.recurrence.kda import torch as kda
from holdover.ops.recurrence.mamba2 import torch as mamba2

# the release whose arguments, layouts and rounding the tests have seen
OLDEST = (0, 6)

# key channels that every kernel takes
WIDEST = 256
# up to so many tokens one kernel that goes token by token is launched, in place of the seven of the chunked form
SHORT = 32


@lru_cache
def sequence(family: str) -> Callable[..., Tensor] | None:
    """A family's in-place ``sequence`` through fla, with the arguments and the result of ``<family>.torch.sequence``.

    Returns:
        None if the family has no such kernel, or if fla is not installed or older than `OLDEST`.
    """
    return _FAMILIES.get(family) if _installed() else None


def _installed() -> bool:
    try:
        release = version("fla-core")
    except PackageNotFoundError:
        return False
    return tuple(int(number) for number in re.findall(r"\d+", release)[:2]) >= OLDEST


def _gdn(pool: Tensor, slots: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    if not _serves(q, q.shape[-1]):
        return gdn.sequence(pool, slots, q, k, v, log_decay, beta)
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule

    kernel = fused_recurrent_gated_delta_rule if _is_short(q) else chunk_gated_delta_rule
    return _delta(kernel, pool, slots, q, k, v, log_decay, beta)


def _kda(pool: Tensor, slots: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    if not _serves(q, q.shape[-1]):
        return kda.sequence(pool, slots, q, k, v, log_decay, beta)
    from fla.ops.kda import chunk_kda, fused_recurrent_kda

    return _delta(fused_recurrent_kda if _is_short(q) else chunk_kda, pool, slots, q, k, v, log_decay, beta)


def _mamba2(pool: Tensor, slots: Tensor, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    if not _serves(x, b.shape[-1]):
        return mamba2.sequence(pool, slots, x, dt, a, b, c, d)
    from fla.ops.simple_gla import chunk_simple_gla, fused_recurrent_simple_gla

    repeats = x.shape[2] // b.shape[2]
    out = _advance(
        fused_recurrent_simple_gla if _is_short(x) else chunk_simple_gla,
        pool,
        slots,
        q=c.to(x.dtype).repeat_interleave(repeats, dim=2),
        k=b.to(x.dtype).repeat_interleave(repeats, dim=2),
        v=(x * dt.unsqueeze(-1)).to(x.dtype),
        g=dt.float() * a.float(),
        scale=1.0,
    )
    return torch.addcmul(out.float(), x.float(), d.float().unsqueeze(-1)).to(x.dtype)


_FAMILIES: dict[str, Callable[..., Tensor]] = {"gdn": _gdn, "kda": _kda, "mamba2": _mamba2}


def _serves(x: Tensor, d_k: int) -> bool:
    """Whether the kernels take ``x [B, T, ...]`` and keep its precision."""
    return x.is_cuda and x.dtype == torch.bfloat16 and x.shape[1] > 1 and d_k <= WIDEST


def _is_short(x: Tensor) -> bool:
    return x.shape[1] <= SHORT


def _delta(
    kernel: Callable[..., Any],
    pool: Tensor,
    slots: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
) -> Tensor:
    """A kernel of the gated delta rule. Its l2 norm adds `delta.EPS`, and its scale is ours unless told otherwise."""
    inputs = {"q": q, "k": k.to(q.dtype), "v": v.to(q.dtype), "g": log_decay.float(), "beta": beta}
    return _advance(kernel, pool, slots, use_qk_l2norm_in_kernel=True, **inputs)


def _advance(kernel: Callable[..., Any], pool: Tensor, slots: Tensor, **inputs: Any) -> Tensor:
    """Run ``kernel`` from the states at ``slots`` and put back the states it leaves."""
    out: Tensor
    out, states = kernel(initial_state=pool.index_select(0, slots), output_final_state=True, **inputs)
    pool.index_copy_(0, slots, states)
    return out
