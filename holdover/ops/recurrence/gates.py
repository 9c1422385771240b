"""Decay gates: from a projection of the hidden state to a log decay per token, shared by every host."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def softplus_gate(a: Tensor, a_log: Tensor, dt_bias: Tensor) -> Tensor:
    """Log decay ``-exp(a_log) * softplus(a + dt_bias)`` in fp32, never positive.

    GDN and Mamba-2: ``a [..., H]`` with ``a_log, dt_bias [H]``. KDA: ``a [..., H, d_k]`` with ``a_log [H, 1]`` and
    ``dt_bias [H, d_k]``. The parameters broadcast against ``a``.
    """
    return -a_log.float().exp() * F.softplus(a.float() + dt_bias.float())


def bounded_gate(f: Tensor, a_log: Tensor, dt_bias: Tensor, lower_bound: float) -> Tensor:
    """Log decay ``lower_bound * sigmoid(exp(a_log) * (f + dt_bias))`` in fp32, between ``lower_bound`` and 0.

    Same shapes as in `softplus_gate`; ``lower_bound`` is negative.
    """
    if lower_bound >= 0:
        raise ValueError(f"lower_bound is {lower_bound}, want a negative number")
    return lower_bound * torch.sigmoid(a_log.float().exp() * (f.float() + dt_bias.float()))
