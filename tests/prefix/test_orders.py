"""Which checkpoint leaves first: each order on a tree that is made by hand."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from holdover.prefix import tree
from holdover.prefix.eviction import EVICTIONS, BranchCoverage, CostAware
from holdover.prefix.eviction.standing import standing_at, standing_of
from holdover.prefix.tree import Node, Root
from holdover.state import EXACT
from holdover.store import LRU, Checkpoint
from holdover.store.checkpoint import Standing


@dataclass(eq=False)
class Entry:
    """As much of a checkpoint as an order looks at."""

    standing: Any
    header: Any = field(default=None)
    hits: int = 1


def entry(depth: int, above: int, branches: int) -> Checkpoint:
    return cast(Checkpoint, Entry(lambda: Standing(above, branches), SimpleNamespace(depth=depth)))


def leaving(order: LRU[Checkpoint], entries: list[Checkpoint]) -> list[int]:
    """Places of the entries in the order in which they leave; they were used in the order of the list."""
    for one in entries:
        order.touch(one)
    found = []
    while (victim := order.oldest(lambda _: True)) is not None:
        found.append(entries.index(victim))
        order.discard(victim)
    return found


def grown(*lengths: int) -> list[Node]:
    """A path of nodes below a fresh root."""
    node: Node = Root(b"")
    nodes = [node]
    for i, length in enumerate(lengths):
        node = tree.append(node, (i,) * length, torch.arange(length), EXACT)
        nodes.append(node)
    return nodes


def test_standing_counts_what_has_no_nearer_checkpoint() -> None:
    root, top, middle, low = grown(5, 5, 5)
    other = tree.append(top, (9, 9), torch.arange(2), EXACT)
    assert standing_at(low) == (0, 1)
    top.checkpoint = entry(5, 0, 2)
    assert standing_at(top) == (0, 2)
    assert standing_at(low).above == 5
    low.checkpoint = entry(15, 5, 1)
    assert standing_at(top) == (0, 1)
    middle.checkpoint = entry(10, 5, 0)
    assert standing_at(middle) == (5, 0)
    assert standing_at(other) == (5, 1)
    assert standing_at(low).above == 10
    assert root.is_leaf is False


def test_standing_in_a_conversation_of_thousands_of_turns() -> None:
    nodes = grown(*[1] * 5_000)
    nodes[1].checkpoint = entry(1, 0, 1)
    assert standing_at(nodes[1]) == (0, 1)
    assert standing_at(nodes[-1]).above == 1


def test_an_end_that_nobody_came_back_to_supersedes_nothing() -> None:
    _, boundary, end = grown(50, 5)
    boundary.checkpoint, end.checkpoint = entry(50, 0, 1), entry(55, 50, 1)
    cast(Any, end.checkpoint).hits = 0
    assert standing_at(boundary) == (0, 1)
    assert standing_at(end) == (50, 1)
    cast(Any, end.checkpoint).hits = 1
    assert standing_at(boundary) == (0, 0)


def test_a_checkpoint_that_nobody_placed_stands_for_itself() -> None:
    assert standing_of(cast(Checkpoint, Entry(None))) == (0, 1)


def test_the_least_recently_used_goes_first() -> None:
    entries = [entry(100, 0, 1), entry(10, 0, 0), entry(50, 0, 1)]
    assert leaving(EVICTIONS["lru"](), entries) == [0, 1, 2]


def test_cost_weighs_tokens_saved_against_use() -> None:
    # the first is oldest and saves by far the most; the second saves ten tokens more than the one above it
    entries = [entry(1000, 0, 1), entry(1010, 1000, 1), entry(500, 0, 1)]
    assert leaving(CostAware(), entries) == [1, 0, 2]
    # as many tokens for twice as many branches
    assert leaving(CostAware(), [entry(100, 0, 2), entry(100, 0, 1), entry(99, 0, 1)])[0] == 1
    # equal ones go by use
    assert leaving(CostAware(), [entry(10, 0, 1) for _ in range(4)]) == [0, 1, 2, 3]


def test_what_covers_no_branch_promises_nothing() -> None:
    entries = [entry(10, 0, 1), entry(9000, 0, 0), entry(8000, 0, 0), entry(20, 0, 1)]
    assert leaving(CostAware(), entries)[:2] == [1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_cost_is_the_least_promise_of_all(seed: int) -> None:
    draw = random.Random(seed)
    entries = []
    for _ in range(12):
        depth = draw.randint(1, 40)
        entries.append(entry(depth, draw.randrange(depth), draw.randrange(4)))
    order, staying = CostAware(), draw.sample(entries, 9)
    for one in entries:
        order.touch(one)

    def promise(one: Checkpoint) -> float:
        newer = len(entries) - 1 - entries.index(one)
        above, branches = standing_of(one)
        return float((one.header.depth - above) * branches / (1 + newer))

    # `min` gives the first of equals
    wanted = min((one for one in entries if one in staying), key=promise)
    assert order.oldest(lambda one: one in staying) is wanted


def test_coverage_spares_the_only_one_of_a_branch() -> None:
    entries = [entry(100, 0, 1), entry(50, 0, 3), entry(60, 0, 0), entry(20, 0, 1), entry(70, 0, 0)]
    assert leaving(BranchCoverage(), entries) == [2, 4, 0, 3, 1]


def test_what_may_not_go_is_passed_over() -> None:
    for name, make in EVICTIONS.items():
        order, kept, other = make(), entry(10, 0, 0), entry(900, 0, 9)
        order.touch(kept)
        order.touch(other)
        assert order.oldest(lambda one, kept=kept: one is not kept) is other, name
        assert order.oldest(lambda _: False) is None
