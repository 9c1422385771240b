"""Pinned prefixes stay, whatever pressure there is, and never take so much that requests find no room."""

import pytest

from holdover.errors import CapacityError, RequestError
from holdover.prefix.listing import entries
from holdover.state.key import chain_of
from holdover.store import TierOptions
from tests.prefix.build import A, B, World
from tests.state import build as states
from tests.store.tier_build import Delayed, half

TEN = list(range(10))


def served(world: World, *prompts: list[int]) -> None:
    for prompt in prompts:
        world.serve(prompt)


def test_a_pin_outlives_pressure_and_flush() -> None:
    world = World(4, 60)
    served(world, TEN[:4])
    assert world.pin(A, TEN[:4])
    for first in range(50, 90):
        world.serve([first, *range(5)])
    world.flush()
    assert world.states() == [(A, (0, 1, 2, 3))]
    assert len(list(world.rows())) == 4
    sequence = world.open(TEN)
    assert len(sequence.tokens) == 4
    world.abort(sequence)
    world.unpin(A, TEN[:4])
    assert world.flush() == 1
    world.check_empty()


def test_only_a_state_that_is_cached_can_be_pinned() -> None:
    world = World()
    served(world, TEN[:4])
    for namespace, tokens in [(A, TEN[:3]), (A, TEN[:5]), (A, []), (B, TEN[:4])]:
        assert not world.pin(namespace, tokens)
    assert not world.cache.pins
    world.check()


def test_twice_is_as_good_as_once() -> None:
    world = World()
    served(world, TEN[:4], TEN[:8])
    assert world.pin(A, TEN[:4])
    assert world.pin(A, TEN[:4])
    assert world.pin(A, TEN[:8])
    assert [pin.depth for pin in world.cache.pins] == [4, 8]
    world.unpin(A, TEN[:4])
    assert not world.cache.pins.remove(chain_of(A, TEN[:4]).key())
    # its rows are still those of a pinned prefix
    assert world.flush() == 1
    assert len(list(world.rows())) == 8
    world.check()


@pytest.mark.parametrize(("slots", "reserved", "room"), [(1, 0, 0), (2, 0, 1), (2, 1, 0), (5, 0, 2), (5, 1, 2)])
def test_half_of_the_slots(slots: int, reserved: int, room: int) -> None:
    world = World(slots)
    for first in range(room):
        world.serve([first, 1])
        assert world.cache.pins.add(A, [first, 1], reserved=reserved)
        world.check()
    world.serve([room, 1])
    with pytest.raises(RequestError, match=f"{room} of {slots - reserved} native state slots") as caught:
        world.cache.pins.add(A, [room, 1], reserved=reserved)
    assert caught.value.code == "pin_budget_exceeded"
    world.check()


def test_half_of_the_rows_shared_ones_once() -> None:
    world = World(8, 20)
    served(world, TEN[:6], [*TEN[:6], 30, 31], [*TEN[:6], 40, 41, 42])
    assert world.pin(A, TEN[:6])
    assert world.pin(A, [*TEN[:6], 30, 31])
    with pytest.raises(RequestError, match="8 of 20 KV rows are pinned, and this needs 3 more"):
        world.pin(A, [*TEN[:6], 40, 41, 42])
    world.unpin(A, [*TEN[:6], 30, 31])
    assert world.pin(A, [*TEN[:6], 40, 41, 42])
    world.check()


def test_the_last_slot_is_not_taken_over() -> None:
    world = World(2)
    served(world, TEN[:4])
    assert world.pin(A, TEN[:4])
    world.open([90])
    with pytest.raises(CapacityError):
        world.open(TEN)
    world.check()


@pytest.mark.parametrize("is_done", [False, True])
def test_what_moves_when_it_is_pinned_arrives_first(is_done: bool) -> None:
    codec, mover = half(states.ONE), Delayed()
    world = World(4, 60, codec.layout, packed=4, codec=codec, mover=mover, options=TierOptions())
    served(world, TEN[:4])
    world.tiers.maintain()
    if is_done:
        mover.jobs[0].run()
    assert world.pin(A, TEN[:4])
    checkpoint = world.node(TEN[:4]).checkpoint
    assert checkpoint is not None
    assert (checkpoint.tier, checkpoint.demotion) == ("compressed", None)
    world.check()


def test_a_pinned_state_is_not_packed() -> None:
    codec = half(states.ONE)
    world = World(4, 60, codec.layout, packed=4, codec=codec, options=TierOptions(watermark=3))
    served(world, TEN[:4])
    assert world.pin(A, TEN[:4])
    for _ in range(3):
        world.tiers.maintain()
    checkpoint = world.node(TEN[:4]).checkpoint
    assert checkpoint is not None
    assert checkpoint.tier == "native"
    world.check()


def test_damaged_bytes_are_dropped_even_when_pinned() -> None:
    world = World()
    served(world, TEN[:4], TEN[:6])
    world.pin(A, TEN[:6])
    first, second = world.node(TEN[:4]).checkpoint, world.node(TEN[:6]).checkpoint
    assert first is not None
    assert second is not None
    world.pool.copy(first.slot, second.slot)
    sequence = world.open(TEN)
    assert len(sequence.tokens) == 4
    assert world.cache.counters["checkpoints_refused"] == 1
    world.check()
    world.abort(sequence)
    world.unpin(A, TEN[:6])
    world.check()


def test_listing() -> None:
    world = World()
    world.serve(TEN[:8], stops=(4,))
    world.serve([*TEN[:6], 50, 51])
    world.serve(TEN[:3], B)
    world.pin(A, TEN[:4])
    world.abort(world.open([*TEN[:8], 1]))
    found = {(one.tenant, one.depth, one.key): one for one in entries(world.cache)}
    assert len(found) == 4
    assert len({one.tenant for one in found.values()}) == 2
    by_key = {one.key: one for one in found.values()}
    deep, pinned = by_key[chain_of(A, TEN[:8]).key()], by_key[chain_of(A, TEN[:4]).key()]
    assert (deep.depth, deep.parent, deep.hits, deep.is_pinned) == (8, pinned.key, 1, False)
    # the first request and the branch resumed there
    assert (pinned.depth, pinned.parent, pinned.hits, pinned.is_pinned) == (4, None, 1, True)
    assert {one.tier for one in found.values()} == {"native"}
    assert {one.nbytes for one in found.values()} == {world.pool.layout.checkpoint_bytes}
    assert all(one.lineage.is_exact and one.age >= 0 and not one.is_spilled for one in found.values())
