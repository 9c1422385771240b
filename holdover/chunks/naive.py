"""Transitions of recurrences, token by token and as matrices: what every other form of them is tested against."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from holdover.arch.layout import Family
from holdover.ops.recurrence.gdn.naive import l2_normalise


def transition(family: Family, heads: int, d_k: int, inputs: Mapping[str, Tensor]) -> Tensor:
    """``T_n ... T_1``, in float64, as a matrix ``[H, d_k, d_k]`` whatever the family (LinearKV, Eq. 2-3 and 5).

    Per head and token, with the inputs that the family's recurrence takes::

        Mamba-2   T_t = exp(dt_t a) I
        RWKV-6    T_t = diag(exp(w_t))
        GDN       T_t = (I - beta_t k_t k_t^T) exp(g_t)
        KDA       T_t = (I - beta_t k_t k_t^T) diag(exp(g_t))

    A decay per channel does not commute with the correction: it acts first.

    Args:
        family: the recurrence.
        heads: H.
        d_k: rows of a state.
        inputs: ``[T, ...]`` by name, parameters as they are.
    """
    eye = torch.eye(d_k, dtype=torch.float64)
    product = eye.expand(heads, d_k, d_k)
    timed = {name: inputs[name].double() for name in _TIMED[family]}
    rate = inputs["a"].double() if family == "mamba2" else None
    for t in range(len(timed[_TIMED[family][0]])):
        product = _token(family, {name: x[t] for name, x in timed.items()}, rate, eye.expand_as(product)) @ product
    return product


def _token(family: Family, at: Mapping[str, Tensor], rate: Tensor | None, eye: Tensor) -> Tensor:
    """One token's transition ``[H, d_k, d_k]``."""
    if rate is not None:
        return (at["dt"] * rate).exp()[:, None, None] * eye
    decay = at["log_decay"].exp().view(len(eye), -1, 1) * eye
    if family == "rwkv6":
        return decay
    k = l2_normalise(at["k"]).repeat_interleave(len(eye) // len(at["k"]), dim=0)
    return (eye - at["beta"][:, None, None] * k[:, :, None] * k[:, None, :]) @ decay


_TIMED: Mapping[Family, tuple[str, ...]] = {
    "mamba2": ("dt",),
    "rwkv6": ("log_decay",),
    "gdn": ("log_decay", "k", "beta"),
    "kda": ("log_decay", "k", "beta"),
}
