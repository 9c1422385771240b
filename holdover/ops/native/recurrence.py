"""The recurrences in C on a pool of states: signatures and results are those of each family's torch form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor

from holdover.ops.native.arguments import check_pool, check_shapes, room, rows, threads
from holdover.ops.native.library import Recurrence, call, timed


class Family(IntEnum):
    """What the C source calls the families."""

    GDN = 0
    KDA = 1
    MAMBA2 = 2


@dataclass(frozen=True)
class Form:
    """A family's two functions.

    Attributes:
        step: one token, inputs without a time axis.
        sequence: several tokens.
    """

    step: Callable[..., Tensor]
    sequence: Callable[..., Tensor]


def _delta(
    family: Family, pool: Tensor, slots: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor
) -> Tensor:
    channels = 2 if family is Family.KDA else 1
    inputs = (rows(q, 2), rows(k, 2), rows(v, 2), rows(log_decay, channels), rows(beta, 1))
    return _run(family, pool, slots, inputs, None, None).to(q.dtype)


def _mamba2(pool: Tensor, slots: Tensor, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    check_shapes([a, d], [x.shape[2:3]] * 2)
    dt = rows(dt, 1)
    inputs = (rows(c, 2), rows(b, 2), rows(x, 2), dt, dt)
    return _run(Family.MAMBA2, pool, slots, inputs, rows(a, 1), rows(d, 1)).to(x.dtype)


def _run(
    family: Family,
    pool: Tensor,
    slots: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    rate: Tensor | None,
    skip: Tensor | None,
) -> Tensor:
    """``inputs`` are queries, keys, values, decays and write strengths ``[B, T, ...]``; gives ``[B, T, H, d_v]``.

    Raises:
        ValueError: a tensor is not of the shape that the others ask for; nothing was written.
        IndexError: a slot is not in the pool; likewise.
    """
    queries, _, values, _, _ = inputs
    batch, tokens, heads, d_v = values.shape
    key_heads, d_k = queries.shape[2:]
    if not key_heads or heads % key_heads:
        raise ValueError(f"{heads} heads, want a multiple of the {key_heads} key heads")
    per_head, keys = (batch, tokens, heads), (batch, tokens, key_heads, d_k)
    decays = (*per_head, d_k) if family is Family.KDA else per_head
    check_shapes(inputs, [keys, keys, (*per_head, d_v), decays, per_head])
    check_pool(pool, slots, batch, (heads, d_k, d_v))
    out = room(*values.shape)
    call(
        Recurrence(
            pool.data_ptr(),
            slots.data_ptr(),
            pool.stride(0),
            batch,
            tokens,
            heads,
            key_heads,
            d_k,
            d_v,
            family,
            threads(batch * tokens * heads * d_k * d_v),
            *map(timed, inputs),
            None if rate is None else rate.data_ptr(),
            None if skip is None else skip.data_ptr(),
            out.data_ptr(),
        )
    )
    return out


def _delta_form(family: Family) -> Form:
    def sequence(
        pool: Tensor, slots: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor
    ) -> Tensor:
        return _delta(family, pool, slots, q, k, v, log_decay, beta)

    def step(pool: Tensor, slots: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
        one = (x.unsqueeze(1) for x in (q, k, v, log_decay, beta))
        return _delta(family, pool, slots, *one).squeeze(1)

    return Form(step, sequence)


def _mamba2_step(
    pool: Tensor, slots: Tensor, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor
) -> Tensor:
    x, dt, b, c = (y.unsqueeze(1) for y in (x, dt, b, c))
    return _mamba2(pool, slots, x, dt, a, b, c, d).squeeze(1)


# by the name of the family's folder in ops/recurrence
FORMS = {
    "gdn": _delta_form(Family.GDN),
    "kda": _delta_form(Family.KDA),
    "mamba2": Form(_mamba2_step, _mamba2),
}
