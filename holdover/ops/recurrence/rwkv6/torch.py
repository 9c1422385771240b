"""RWKV-6 on a pool of states, in fp32 whatever the inputs' dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from holdover.ops.slots import in_place


def step(pool: Tensor, slots: Tensor, r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, bonus: Tensor) -> Tensor:
    """Advance the states at ``slots`` by one token, in place; no other slot changes.

    Args:
        pool: ``[S, H, d_k, d_v]`` fp32; may be strided over S.
        slots: ``[B]`` int64, distinct.
        r: receptances ``[B, H, d_k]``.
        k: keys ``[B, H, d_k]``.
        v: values ``[B, H, d_v]``.
        log_decay: ``[B, H, d_k]``.
        bonus: ``[H, d_k]``.

    Returns:
        ``[B, H, d_v]`` in r's dtype.
    """
    out = torch.empty(v.shape, dtype=r.dtype, device=r.device)
    for part, state in in_place(pool, slots):
        read, key, value = r[part].float(), k[part].float(), v[part].float()
        before = torch.matmul(read.unsqueeze(-2), state).squeeze(-2)  # [b, H, d_v]
        overlap = torch.linalg.vecdot(read * bonus.float(), key).unsqueeze(-1)
        out[part] = before.addcmul_(value, overlap)
        state.mul_(log_decay[part].float().exp().unsqueeze(-1))
        state.addcmul_(key.unsqueeze(-1), value.unsqueeze(-2))
    return out


def sequence(pool: Tensor, slots: Tensor, r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, bonus: Tensor) -> Tensor:
    """Advance the states at ``slots`` by T tokens, in place; no other slot changes.

    Token by token: no host of this family prefills with it.

    Args:
        pool: ``[S, H, d_k, d_v]`` fp32; may be strided over S.
        slots: ``[B]`` int64, distinct.
        r: receptances ``[B, T, H, d_k]``.
        k: keys ``[B, T, H, d_k]``.
        v: values ``[B, T, H, d_v]``.
        log_decay: ``[B, T, H, d_k]``.
        bonus: ``[H, d_k]``.

    Returns:
        ``[B, T, H, d_v]`` in r's dtype.
    """
    out = torch.empty(v.shape, dtype=r.dtype, device=r.device)
    for t in range(v.shape[1]):
        out[:, t] = step(pool, slots, r[:, t], k[:, t], v[:, t], log_decay[:, t], bonus)
    return out
