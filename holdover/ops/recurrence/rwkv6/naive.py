"""RWKV-6, token by token: the definition that every other form of it is tested against."""

from __future__ import annotations

import torch
from torch import Tensor


def recurrence(
    state: Tensor, r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, bonus: Tensor
) -> tuple[Tensor, Tensor]:
    """Advance ``state`` over T tokens in its own dtype; the input is left as it is.

    Per head, the output reads the state *before* the token's update, and the token itself with a bonus (Peng et al.,
    Eagle and Finch)::

        o_t = r_t^T (S_{t-1} + diag(u) k_t v_t^T)
        S_t = diag(exp(w_t)) S_{t-1} + k_t v_t^T

    Args:
        state: ``[B, H, d_k, d_v]``.
        r: receptances ``[B, T, H, d_k]``.
        k: keys ``[B, T, H, d_k]``.
        v: values ``[B, T, H, d_v]``.
        log_decay: w ``[B, T, H, d_k]``, never positive.
        bonus: u ``[H, d_k]``.

    Returns:
        Outputs ``[B, T, H, d_v]`` and the final state.
    """
    r, k, v, bonus = (x.to(state.dtype) for x in (r, k, v, bonus))
    decay = log_decay.to(state.dtype).exp()

    outputs = []
    for t in range(v.shape[1]):
        written = k[:, t, :, :, None] * v[:, t, :, None, :]  # [B, H, d_k, d_v]
        outputs.append(torch.einsum("bhk,bhkv->bhv", r[:, t], state + bonus[:, :, None] * written))
        state = state * decay[:, t, :, :, None] + written
    return torch.stack(outputs, dim=1), state
