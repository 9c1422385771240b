"""Which checkpoint leaves first: each order on checkpoints whose places are made up."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import cast

import pytest

from holdover.prefix.eviction import EVICTIONS, BranchCoverage, CostAware
from holdover.store import LRU, Checkpoint


@dataclass(eq=False)
class Entry:
    """As much of a checkpoint as an order looks at."""

    saved: int
    branches: int


def entry(saved: int, branches: int) -> Checkpoint:
    return cast(Checkpoint, Entry(saved, branches))


def leaving(order: LRU[Checkpoint], entries: list[Checkpoint]) -> list[int]:
    """Places of the entries in the order in which they leave; they were used in the order of the list."""
    for one in entries:
        order.touch(one)
    found = []
    while (victim := order.oldest(lambda _: True)) is not None:
        found.append(entries.index(victim))
        order.discard(victim)
    return found


def test_the_least_recently_used_goes_first() -> None:
    entries = [entry(100, 1), entry(10, 0), entry(50, 1)]
    assert leaving(EVICTIONS["lru"](), entries) == [0, 1, 2]


def test_cost_weighs_tokens_saved_against_use() -> None:
    # the first is oldest and saves by far the most
    entries = [entry(1000, 1), entry(10, 1), entry(500, 1)]
    assert leaving(CostAware(), entries) == [1, 0, 2]
    # as many tokens for twice as many branches
    assert leaving(CostAware(), [entry(100, 2), entry(100, 1), entry(99, 1)])[0] == 1
    # equal ones go by use
    assert leaving(CostAware(), [entry(10, 1) for _ in range(4)]) == [0, 1, 2, 3]


def test_what_covers_no_branch_promises_nothing() -> None:
    entries = [entry(10, 1), entry(9000, 0), entry(8000, 0), entry(20, 1)]
    assert leaving(CostAware(), entries)[:2] == [1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_cost_is_the_least_promise_of_all(seed: int) -> None:
    draw = random.Random(seed)
    entries = [entry(draw.randint(1, 40), draw.randrange(4)) for _ in range(12)]
    order, staying = CostAware(), draw.sample(entries, 9)
    for one in entries:
        order.touch(one)

    def promise(one: Checkpoint) -> float:
        newer = len(entries) - 1 - entries.index(one)
        return one.saved * one.branches / (1 + newer)

    # `min` gives the first of equals
    wanted = min((one for one in entries if one in staying), key=promise)
    assert order.oldest(lambda one: one in staying) is wanted


def test_coverage_spares_the_only_one_of_a_branch() -> None:
    entries = [entry(100, 1), entry(50, 3), entry(60, 0), entry(20, 1), entry(70, 0)]
    assert leaving(BranchCoverage(), entries) == [2, 4, 0, 3, 1]


def test_what_may_not_go_is_passed_over() -> None:
    for name, make in EVICTIONS.items():
        order, kept, other = make(), entry(10, 0), entry(900, 9)
        order.touch(kept)
        order.touch(other)
        assert order.oldest(lambda one, kept=kept: one is not kept) is other, name
        assert order.oldest(lambda _: False) is None
