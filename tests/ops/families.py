"""Random inputs for every recurrence family, so that one suite is parametrised over all of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType

import torch
from torch import Tensor

from holdover.ops.native.recurrence import FORMS, Form
from holdover.ops.recurrence.gdn import naive as gdn_naive
from holdover.ops.recurrence.gdn import torch as gdn_torch
from holdover.ops.recurrence.kda import naive as kda_naive
from holdover.ops.recurrence.kda import torch as kda_torch
from holdover.ops.recurrence.mamba2 import naive as mamba2_naive
from holdover.ops.recurrence.mamba2 import torch as mamba2_torch
from holdover.ops.recurrence.rwkv6 import naive as rwkv6_naive
from holdover.ops.recurrence.rwkv6 import torch as rwkv6_torch

D_K, D_V = 16, 24
SHORTEST, LONGEST = 1.0, 1e5  # half-lives in tokens


@dataclass(frozen=True)
class Case:
    """A family at one head layout.

    Attributes:
        name: identifies the case in test ids.
        naive: the executable definition.
        ops: the implementation under test.
        heads: value heads.
        draw: ``(case, batch, tokens, generator) -> arguments`` after the state, in order.
        constant: positions of arguments without a token axis.
        d_k: key width.
        d_v: value width.
    """

    name: str
    naive: ModuleType
    ops: ModuleType | Form
    heads: int
    key_heads: int
    draw: Callable[[Case, int, int, torch.Generator], tuple[Tensor, ...]]
    constant: tuple[int, ...] = ()
    d_k: int = D_K
    d_v: int = D_V

    def arguments(self, batch: int, tokens: int, seed: int = 0) -> tuple[Tensor, ...]:
        return self.draw(self, batch, tokens, torch.Generator().manual_seed(seed))

    def at(self, arguments: tuple[Tensor, ...], tokens: slice | int) -> tuple[Tensor, ...]:
        """The arguments of some tokens."""
        return tuple(x if i in self.constant else x[:, tokens] for i, x in enumerate(arguments))

    def at_rows(self, arguments: tuple[Tensor, ...], rows: slice) -> tuple[Tensor, ...]:
        """The arguments of some sequences."""
        return tuple(x if i in self.constant else x[rows] for i, x in enumerate(arguments))

    def reference(self, state: Tensor, arguments: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Outputs and final state in float64."""
        result: tuple[Tensor, Tensor] = self.naive.recurrence(state.double(), *(x.double() for x in arguments))
        return result


def half_lives(heads: int) -> Tensor:
    """Log decay per head for half-lives spread from SHORTEST to LONGEST."""
    return -math.log(2) / torch.logspace(math.log10(SHORTEST), math.log10(LONGEST), heads)


def _delta_inputs(case: Case, batch: int, tokens: int, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k = torch.randn(2, batch, tokens, case.key_heads, case.d_k, generator=g)
    v = torch.randn(batch, tokens, case.heads, case.d_v, generator=g)
    beta = torch.rand(batch, tokens, case.heads, generator=g)
    return q, k, v, beta


def _gdn(case: Case, batch: int, tokens: int, g: torch.Generator) -> tuple[Tensor, ...]:
    q, k, v, beta = _delta_inputs(case, batch, tokens, g)
    log_decay = half_lives(case.heads) * (0.5 + torch.rand(batch, tokens, case.heads, generator=g))
    return q, k, v, log_decay, beta


def _kda(case: Case, batch: int, tokens: int, g: torch.Generator) -> tuple[Tensor, ...]:
    q, k, v, beta = _delta_inputs(case, batch, tokens, g)
    channels = half_lives(case.heads * case.d_k)[torch.randperm(case.heads * case.d_k, generator=g)]
    log_decay = channels.view(case.heads, case.d_k) * (
        0.5 + torch.rand(batch, tokens, case.heads, case.d_k, generator=g)
    )
    return q, k, v, log_decay, beta


def _mamba2(case: Case, batch: int, tokens: int, g: torch.Generator) -> tuple[Tensor, ...]:
    x = torch.randn(batch, tokens, case.heads, case.d_v, generator=g)
    dt = 0.5 + torch.rand(batch, tokens, case.heads, generator=g)
    b, c = torch.randn(2, batch, tokens, case.key_heads, case.d_k, generator=g)
    return x, dt, half_lives(case.heads), b, c, torch.randn(case.heads, generator=g)


def _rwkv6(case: Case, batch: int, tokens: int, g: torch.Generator) -> tuple[Tensor, ...]:
    r, k, v, log_decay, _ = _kda(case, batch, tokens, g)
    return r, k, v, log_decay, torch.randn(case.heads, case.d_k, generator=g)


CASES = [
    Case("gdn", gdn_naive, gdn_torch, 4, 4, _gdn),
    Case("gdn-grouped", gdn_naive, gdn_torch, 6, 2, _gdn),
    Case("kda", kda_naive, kda_torch, 3, 3, _kda),
    Case("mamba2", mamba2_naive, mamba2_torch, 4, 4, _mamba2, constant=(2, 5)),
    Case("mamba2-grouped", mamba2_naive, mamba2_torch, 6, 2, _mamba2, constant=(2, 5)),
]
NATIVE = [
    *(replace(case, name=f"{case.name}-native", ops=FORMS[case.name.split("-")[0]]) for case in CASES),
    # every number of vectors and rest that a head's columns are cut into, whatever the registers' width
    *(
        replace(case, name=f"{case.name}-native-{d_v}", ops=FORMS[case.name.split("-")[0]], d_k=d_k, d_v=d_v)
        for case, d_k, d_v in itertools.chain.from_iterable(
            ((case, d_k, d_v) for d_k, d_v in ((1, 1), (5, 7), (33, 61), (64, 64), (8, 147))) for case in CASES[1:4]
        )
    ),
]
# no model of this family is served: it has no twin and no chunkwise form
RWKV6 = Case("rwkv6", rwkv6_naive, rwkv6_torch, 3, 3, _rwkv6, constant=(4,))


def painted_pool(case: Case, slots: int = 6) -> Tensor:
    """A strided pool ``[slots, H, d_k, d_v]`` whose slots hold their own constant."""
    layers = torch.full((slots, 3, case.heads, case.d_k, case.d_v), float("nan"))
    pool = layers[:, 1]
    pool.copy_(torch.arange(1.0, slots + 1)[:, None, None, None].expand_as(pool))
    return pool
