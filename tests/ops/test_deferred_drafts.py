"""Drafts in several tiles, heads and chunks of the log, against the dense definition in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.helpers import assert_close
from tests.ops.families import Case
from tests.ops.test_deferred import RTOL, Pool, each_case, each_form, small


def wide(case: Case) -> Case:
    """Three tiles of values and two blocks of keys; several heads, and two key heads where they are grouped."""
    grouped = case.heads > case.key_heads
    return replace(case, heads=4 if grouped else 2, key_heads=2, d_k=32, d_v=24)


@each_case
@each_form
def test_slots_with_and_without_room(case: Case, name: str) -> None:
    """Slots that fold and slots that append share a call, with padding; a log of 18 is replayed in two parts."""
    case, capacity, drafts = wide(case), 18, 3
    slots, fills = [4, 1], [capacity - drafts, 17]
    pool = Pool.make(case, name, capacity + 1, 6)
    pool.fill(slots, fills)
    other, bases = pool.base[5].clone(), pool.base.clone()
    arguments = case.arguments(3, drafts, seed=21)
    expected, dense = case.reference(pool.states(slots), case.at_rows(arguments, slice(1, None)))
    out = pool.verify([0, *slots], arguments)
    assert_close("outputs", out[1:], expected, RTOL)
    assert_close("states", pool.states(slots), dense, RTOL)
    assert (out[0] == 0).all()
    assert pool.cursor.length.tolist() == [0, drafts, 0, 0, capacity, 0]
    assert [torch.equal(pool.base[slot], bases[slot]) for slot in slots] == [True, False]
    assert torch.equal(pool.base[5], other)
    assert all(x[[0, 2, 3, 5]].isnan().all() for x in pool.log_tensors())


@each_case
@each_form
def test_rounds_of_drafts(case: Case, name: str) -> None:
    """Verify, take some back, go on: rounds that fold now and then leave what the kept tokens make."""
    case, capacity, drafts = small(case), 9, 4
    pool = Pool.make(case, name, capacity + 1, 3)
    state = pool.states([2])
    for turn in range(5):
        arguments, kept = case.arguments(1, drafts, seed=turn), 1 + turn % drafts
        expected, _ = case.reference(state, arguments)
        assert_close(f"outputs {turn}", pool.verify([2], arguments), expected, RTOL)
        _, state = case.reference(state, case.at(arguments, slice(0, kept)))
        counts = torch.tensor([drafts - kept], dtype=torch.int32, device=pool.base.device)
        pool.form.rollback(pool.cursor, torch.tensor([2], device=pool.base.device), counts)
        assert_close(f"state {turn}", pool.states([2]), state, RTOL)


@each_case
@each_form
@pytest.mark.parametrize("per_token", [-5.0, float("-inf")])
def test_strong_decay_among_drafts(case: Case, name: str, per_token: float) -> None:
    """Drafts that forget everything between drafts that forget nothing: no overflow."""
    case, drafts = small(case), 7
    pool = Pool.make(case, name, 12, 2)
    pool.fill([1], [2])
    arguments = list(case.arguments(1, drafts, seed=22))
    at = 1 if case.name.startswith("mamba2") else 3
    forgets = (torch.arange(drafts) % 3 == 1).view(1, -1, *[1] * (arguments[at].dim() - 2))
    if at == 1:
        arguments[2] = torch.full_like(arguments[2], -1.0)
        arguments[1] = torch.where(forgets, min(200.0, -per_token), 1e-5).expand_as(arguments[1]).contiguous()
    else:
        arguments[3] = torch.where(forgets, per_token, -1e-5).expand_as(arguments[3]).contiguous()
    expected, dense = case.reference(pool.states([1]), tuple(arguments))
    assert_close("outputs", pool.verify([1], tuple(arguments)), expected, 5e-5)
    assert_close("state", pool.states([1]), dense, 5e-5)


def spread(x: torch.Tensor) -> torch.Tensor:
    """The same tensor with NaN between its tokens in memory."""
    roomy = torch.full((x.shape[0], 2 * x.shape[1], *x.shape[2:]), float("nan"), dtype=x.dtype)
    return roomy[:, ::2].copy_(x)


@each_case
@each_form
def test_low_precision_drafts_may_be_views(case: Case, name: str) -> None:
    """bf16 activations lose their own rounding only, and may lie anywhere in the batch and token axes."""
    case, drafts = small(case), 3
    pool = Pool.make(case, name, 8, 3, dtype=torch.bfloat16)
    arguments = tuple(x if i in case.constant else x.bfloat16() for i, x in enumerate(case.arguments(2, drafts)))
    views = tuple(x if i in case.constant else spread(x) for i, x in enumerate(arguments))
    expected, dense = case.reference(pool.states([2, 1]), arguments)
    out = pool.verify([2, 1], views)
    assert out.dtype == torch.bfloat16
    assert_close("outputs", out, expected, torch.finfo(torch.bfloat16).eps)
    assert_close("states", pool.states([2, 1]), dense, RTOL)
