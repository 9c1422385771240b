"""Deferred recurrence, token by token: the definition that every other form of it is tested against.

A state is a base and a bounded log of rank-one updates (DeltaLog, Section 3). All slots are in one phase here.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from holdover.ops.deferred.family import Family, Inputs
from holdover.ops.recurrence.gdn.naive import l2_normalise


class Entry(NamedTuple):
    """One deferred update ``key value^T`` and the log decay from the last fold up to and including its token.

    ``key`` and ``decay`` are ``[B, H, d_k]``, ``value`` is ``[B, H, d_v]``.
    """

    key: Tensor
    value: Tensor
    decay: Tensor


class Deferred(NamedTuple):
    """Base ``[B, H, d_k, d_v]``, entries since the last fold, and the log decay since then ``[B, H, d_k]``."""

    base: Tensor
    log: tuple[Entry, ...]
    decay: Tensor


def empty(base: Tensor) -> Deferred:
    """A state whose base is all there is of it."""
    return Deferred(base, (), base.new_zeros(base.shape[:-1]))


def logical(state: Deferred) -> Tensor:
    """The dense state that ``state`` stands for (Eq. 7): ``[B, H, d_k, d_v]``."""
    dense = state.decay.exp()[..., None] * state.base
    for entry in state.log:
        key = (state.decay - entry.decay).exp() * entry.key
        dense = dense + key[..., None] * entry.value[..., None, :]
    return dense


def fold(state: Deferred) -> Deferred:
    """The same logical state with an empty log (Eq. 6 without a current token)."""
    return empty(logical(state))


def step(family: Family, state: Deferred, inputs: Inputs, merge_interval: int) -> tuple[Tensor, Deferred]:
    """One token of every sequence (Algorithm 1): its output ``[B, H, d_v]`` and the state after it."""
    q, k, v, log_decay = _per_head(family, inputs, state.base.dtype)
    before = logical(state)
    decayed = log_decay.exp()[..., None] * before
    if inputs.beta is not None:
        predicted = torch.einsum("bhk,bhkv->bhv", k, decayed)
        v = inputs.beta.to(v)[..., None] * (v - predicted)
    after = decayed + k[..., None] * v[..., None, :]

    if inputs.bonus is None:
        output = torch.einsum("bhk,bhkv->bhv", q, after)
    else:
        seen = before + inputs.bonus.to(k)[..., None] * k[..., None] * v[..., None, :]
        output = torch.einsum("bhk,bhkv->bhv", q, seen)
    if inputs.skip is not None:
        output = output + inputs.skip.to(v)[:, None] * v

    decay = state.decay + log_decay
    appended = Deferred(state.base, (*state.log, Entry(k, v, decay)), decay)
    return output, appended if len(appended.log) < merge_interval else fold(appended)


def recurrence(family: Family, state: Deferred, inputs: Inputs, merge_interval: int) -> tuple[Tensor, Deferred]:
    """T tokens of every sequence: outputs ``[B, T, H, d_v]`` and the final state; ``inputs`` are ``[B, T, ...]``."""
    outputs = []
    for t in range(inputs.v.shape[1]):
        output, state = step(family, state, inputs.at(t), merge_interval)
        outputs.append(output)
    return torch.stack(outputs, dim=1), state


def _per_head(family: Family, inputs: Inputs, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query, key, value and log decay of one token for every value head; the decay for every key channel."""
    q, k, v, log_decay = (x.to(dtype) for x in inputs[:4])
    if family.delta:
        q, k = l2_normalise(q) * q.shape[-1] ** -0.5, l2_normalise(k)
    q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], dim=1) for x in (q, k))
    if inputs.weight is not None:
        k = inputs.weight.to(dtype)[..., None] * k
    if inputs.rate is not None:
        log_decay = log_decay * inputs.rate.to(dtype)
    return q, k, v, log_decay if family.per_key else log_decay[..., None].expand_as(k)
