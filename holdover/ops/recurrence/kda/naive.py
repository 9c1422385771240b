"""Kimi Delta Attention, token by token: the gated delta rule with a decay per key channel."""

from __future__ import annotations

from torch import Tensor

from holdover.ops.recurrence.gdn import naive as gdn


def recurrence(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Advance ``state`` over T tokens in its own dtype; the input is left as it is.

    Per head, q and k as in GDN (Kimi Linear)::

        S_t = diag(exp(g_t)) S_{t-1} + k_t (beta_t (v_t - k_t^T diag(exp(g_t)) S_{t-1}))
        o_t = q_t^T S_t

    Args:
        state: ``[B, H, d_k, d_v]``.
        q: raw queries ``[B, T, H, d_k]``.
        k: raw keys ``[B, T, H, d_k]``.
        v: values ``[B, T, H, d_v]``.
        log_decay: ``[B, T, H, d_k]``.
        beta: write strengths ``[B, T, H]``.

    Returns:
        Outputs ``[B, T, H, d_v]`` and the final state.
    """
    return gdn.recurrence(state, q, k, v, log_decay, beta)
