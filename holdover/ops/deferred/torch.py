"""Deferred recurrence on a pool of slots, in fp32 whatever the inputs' dtype.

Only `advance` and `rollback` write the cursor: it is the same for every layer of a step, and moves once all layers are
done. Rows with slot 0 are padding: their output is zero and nothing of slot 0 is read or written.
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdover.ops.deferred.family import Inputs
from holdover.ops.deferred.log import FLOOR, Cursor, Log
from holdover.ops.recurrence.delta import inverse_norm


def step(base: Tensor, log: Log, cursor: Cursor, slots: Tensor, inputs: Inputs, *, out: Tensor | None = None) -> Tensor:
    """One token of every slot: append it to the log, or fold it and the log into the base where the limit is reached.

    Args:
        base: ``[S, H, d_k, d_v]`` fp32 or bf16; may be strided over S.
        log: of the same slots.
        cursor: of the same slots.
        slots: ``[B]`` int64, distinct but for zeros.
        inputs: of one token, ``[B, ...]``.
        out: what to write and return; made if None.

    Returns:
        ``[B, H, d_v]`` in q's dtype.
    """
    live = cursor.length[slots].long()
    found = _step(base, log, live, live >= cursor.limit[slots], slots, inputs)
    return found if out is None else out.copy_(found)


def verify(base: Tensor, log: Log, cursor: Cursor, slots: Tensor, inputs: Inputs) -> Tensor:
    """T tokens of every slot, all of them kept in the log so that the last ones can be taken back.

    A log without room for them is folded first, whatever its limit. `rollback` takes tokens back after `advance`.

    Args:
        base: ``[S, H, d_k, d_v]`` fp32 or bf16; may be strided over S.
        log: of the same slots; holds at least T entries.
        cursor: of the same slots.
        slots: ``[B]`` int64, distinct but for zeros.
        inputs: of T tokens, ``[B, T, ...]``.

    Returns:
        ``[B, T, H, d_v]`` in q's dtype.
    """
    tokens = inputs.v.shape[1]
    fold(base, log, cursor, slots, room=tokens)
    live = cursor.length[slots].long()
    live = torch.where(live + tokens > log.layout.capacity, 0, live)
    full = torch.zeros_like(live, dtype=torch.bool)
    return torch.stack([_step(base, log, live + t, full, slots, inputs.at(t)) for t in range(tokens)], dim=1)


def advance(cursor: Cursor, slots: Tensor, capacity: int, *, drafts: int | None = None, dense: bool = False) -> None:
    """Move the cursor at ``slots`` past a `step`, or past a `verify` of ``drafts`` tokens, as `next_cursor` does."""
    slots = slots[slots != 0]
    length, limit = (x[slots] for x in cursor)
    folded = length >= limit if drafts is None else length + drafts > capacity
    added, restart = (1, 0) if drafts is None else (drafts, drafts)
    cursor.length[slots] = torch.where(folded, restart, length + added).to(length.dtype)
    cycle = torch.where(folded, 0 if dense else capacity, limit)
    first = 1 + slots % capacity if capacity and not dense else 0
    cursor.limit[slots] = torch.where(limit == 0, first, cycle).to(limit.dtype)


def rollback(cursor: Cursor, slots: Tensor, counts: Tensor) -> None:
    """Take the newest ``counts [B]`` int32 entries of each slot's log back; slot 0 stays."""
    real = slots != 0
    cursor.length[slots[real]] -= counts[real]


def fold(base: Tensor, log: Log, cursor: Cursor, slots: Tensor, room: int | None = None) -> None:
    """Write the logical state of ``slots`` into their bases; their lengths have yet to become 0.

    With ``room``, only of those slots whose log cannot take so many entries more.
    """
    live = cursor.length[slots]
    chosen = (slots != 0) & (live > 0)
    if room is not None:
        chosen &= live + room > log.layout.capacity
    slots = slots[chosen]
    base[slots] = logical(base, log, cursor, slots).to(base.dtype)


def materialise(base: Tensor, log: Log, cursor: Cursor, sources: Tensor, targets: Tensor) -> None:
    """Write the logical state of each source into its target's base; nothing else changes.

    Args:
        base: ``[S, H, d_k, d_v]`` fp32 or bf16; may be strided over S.
        log: of the same slots.
        cursor: of the same slots.
        sources: ``[B]`` int64; may repeat.
        targets: ``[B]`` int64, distinct but for zeros and none of them a source; a pair with a zero is skipped.
    """
    real = (sources != 0) & (targets != 0)
    base[targets[real]] = logical(base, log, cursor, sources[real]).to(base.dtype)


def logical(base: Tensor, log: Log, cursor: Cursor, slots: Tensor) -> Tensor:
    """The dense states ``[B, H, d_k, d_v]`` that base and log at ``slots`` stand for (Eq. 7); changes nothing."""
    live = cursor.length[slots].long()
    total = _cumulative(log, live, slots)
    return _materialise(base, log, live, slots, total)


def _step(base: Tensor, log: Log, live: Tensor, full: Tensor, slots: Tensor, inputs: Inputs) -> Tensor:
    """One token after ``live [B]`` entries: folded where ``full [B]``, appended elsewhere."""
    real = slots.nonzero().squeeze(1)
    if len(real) < len(slots):
        out = torch.zeros(inputs.v.shape, dtype=inputs.q.dtype, device=inputs.q.device)
        out[real] = _step(base, log, live[real], full[real], slots[real], inputs.rows(real))
        return out

    family, heads = log.layout.family, inputs.v.shape[1]
    q, k, v = inputs.q.float(), inputs.k.float(), inputs.v.float()
    scale = torch.ones(v.shape[:2], device=v.device) if inputs.weight is None else inputs.weight.float()
    if family.delta:
        q = q * inverse_norm(q) * q.shape[-1] ** -0.5
        scale = inverse_norm(k).squeeze(-1).repeat_interleave(heads // k.shape[1], dim=1)
    q, k = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (q, k))
    key = k * scale.unsqueeze(-1)

    before = _cumulative(log, live, slots)
    total = before + _log_decay(inputs, family.per_key)
    read, predicted = _read(base, log, live, slots, (q, before if family.reads_before else total), (key, total))
    written = v if inputs.beta is None else inputs.beta.float().unsqueeze(-1) * (v - predicted)
    overlap = (q * key if inputs.bonus is None else q * inputs.bonus.float() * key).sum(-1, keepdim=True)
    out = torch.addcmul(read, overlap, written)
    if inputs.skip is not None:
        out = torch.addcmul(out, inputs.skip.float().unsqueeze(-1), v)

    _append(log, live[~full], slots[~full], [x[~full] for x in (inputs.k, written, total, scale)])
    if full.any():
        folded = _materialise(base, log, live[full], slots[full], total[full])
        folded = torch.addcmul(folded, key[full].unsqueeze(-1), written[full].unsqueeze(-2))
        base[slots[full]] = folded.to(base.dtype)
    return out.to(inputs.q.dtype)


def _log_decay(inputs: Inputs, per_key: bool) -> Tensor:
    """Floored log decay ``[B, H, d_k]`` or ``[B, H, 1]``."""
    log_decay = inputs.log_decay.float() if inputs.rate is None else inputs.log_decay.float() * inputs.rate.float()
    return (log_decay if per_key else log_decay.unsqueeze(-1)).clamp_min(FLOOR)


def _cumulative(log: Log, live: Tensor, slots: Tensor) -> Tensor:
    """Log decay since the last fold ``[B, H, d_k]`` or ``[B, H, 1]``: the newest live entry's, 0 if there is none."""
    decays = log.decays if log.layout.family.per_key else log.decays.unsqueeze(-1)
    if not log.layout.capacity:
        return decays.new_zeros(len(slots), *decays.shape[1:2], *decays.shape[3:])
    newest = decays[slots, :, (live - 1).clamp_min(0)]
    return torch.where((live > 0)[:, None, None], newest, 0.0)


def _entries(log: Log, live: Tensor, slots: Tensor, until: Tensor) -> tuple[Tensor, Tensor]:
    """Keys ``[B, H, C, d_k]``, with factor and decay up to ``until [B, H, d_k or 1]``, and values; dead ones are 0."""
    alive = (torch.arange(log.layout.capacity, device=live.device) < live[:, None])[:, None, :, None]
    decays = log.decays if log.layout.family.per_key else log.decays.unsqueeze(-1)
    factor = (until.unsqueeze(2) - decays[slots]).exp()
    if log.scales is not None:
        factor = factor * log.scales[slots].unsqueeze(-1)
    keys = log.keys[slots].float().repeat_interleave(log.layout.heads // log.layout.key_heads, dim=1)
    # what is not live may be anything, so it is replaced and not multiplied
    return torch.where(alive, keys * factor, 0.0), torch.where(alive, log.values[slots].float(), 0.0)


def _read(base: Tensor, log: Log, live: Tensor, slots: Tensor, *rows: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """``x^T S`` for each ``(x, decay of S up to the read)``, where S is the logical state: ``[B, H, d_v]`` each."""
    states, found = base[slots].float(), []
    for x, until in rows:
        keys, values = _entries(log, live, slots, until)
        old = torch.matmul((x * until.exp()).unsqueeze(-2), states)  # [B, H, 1, d_v]
        recent = torch.matmul(torch.matmul(x.unsqueeze(-2), keys.mT), values)
        found.append((old + recent).squeeze(-2))
    return tuple(found)


def _materialise(base: Tensor, log: Log, live: Tensor, slots: Tensor, until: Tensor) -> Tensor:
    """The logical states decayed up to ``until``: ``[B, H, d_k, d_v]``."""
    keys, values = _entries(log, live, slots, until)
    return torch.matmul(keys.mT, values).add_(base[slots].float() * until.exp().unsqueeze(-1))


def _append(log: Log, live: Tensor, slots: Tensor, entry: list[Tensor]) -> None:
    """Write raw key, value, cumulative decay and factor at entry ``live`` of ``slots``."""
    key, value, decay, scale = entry
    log.keys[slots, :, live] = key.to(log.keys.dtype)
    log.values[slots, :, live] = value.to(log.values.dtype)
    log.decays[slots, :, live] = decay if log.layout.family.per_key else decay.squeeze(-1)
    if log.scales is not None:
        log.scales[slots, :, live] = scale
