from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from holdover.chunks import ChunkOptions, Extras, check_integrity
from holdover.errors import CapacityError, CheckpointMismatchError, IntegrityError, OwnershipError, RequestError
from holdover.state import Lineage
from holdover.store import LeaseState
from tests.chunks.world import INPUT_BYTES, A, B, World
from tests.state.build import advance


@pytest.mark.parametrize("tokens", [(1,), (1, 2, 3), tuple(range(30))])
def test_what_was_built_is_found(tokens) -> None:
    world = World()
    assert world.store.find(A, tokens) is None
    entry = world.add(tokens)
    assert world.store.find(A, tokens) is entry
    assert len(entry) == len(tokens)
    assert world.store.find(A, (*tokens, 1)) is None
    assert world.store.find(A, tokens[:-1]) is None
    assert world.store.find(B, tokens) is None
    world.check()
    world.check_empty()


def test_one_text_for_two_tenants_is_two_chunks() -> None:
    world = World()
    assert world.add((1, 2), A) is not world.add((1, 2), B)
    world.check()


def test_concurrent_requests_build_once() -> None:
    """The second one sees that somebody is at it, and may not begin; it finds the chunk afterwards."""
    world = World()
    first = world.begin((1, 2))
    assert world.store.is_building(A, (1, 2))
    assert not world.store.is_building(B, (1, 2))
    assert world.store.find(A, (1, 2)) is None
    with pytest.raises(OwnershipError, match="is being built"):
        world.store.begin(A, (1, 2))
    entry = world.finish(first)
    assert not world.store.is_building(A, (1, 2))
    assert world.store.find(A, (1, 2)) is entry
    with pytest.raises(OwnershipError, match="is there"):
        world.store.begin(A, (1, 2))
    assert world.store.counters["chunks_built"] == 1
    world.check()


def test_an_abandoned_build_can_be_begun_again() -> None:
    world = World()
    world.abandon(world.begin((1, 2)))
    world.check()
    world.add((1, 2))
    world.check_empty()


def test_an_empty_chunk_is_refused() -> None:
    with pytest.raises(RequestError, match="empty"):
        World().store.begin(A, ())


def test_a_build_ends_once() -> None:
    world = World()
    prefill = world.begin((1, 2))
    world.finish(prefill)
    for end in (
        lambda: world.store.abandon(prefill.build),
        lambda: world.store.finish(prefill.build, prefill.lease, Extras()),
    ):
        with pytest.raises(OwnershipError, match="ended already"):
            end()
    world.check_empty()


@pytest.mark.parametrize("fault", ["short", "other tokens", "other namespace", "approximate", "torn", "extras"])
def test_a_state_that_is_not_the_chunks_is_refused(fault: str) -> None:
    world = World()
    prefill = world.begin((1, 2, 3))
    slot, build = prefill.lease.slot, prefill.build
    extras = world.run(prefill)
    if fault == "extras":
        extras = Extras()
    else:
        world.pool.reset(slot, b"else" if fault == "other namespace" else build.namespace)
        tokens = {"short": (1, 2), "other tokens": (1, 2, 4)}.get(fault, (1, 2, 3))
        advance(world.pool, slot, tokens)
    if fault == "approximate":
        world.pool.relabel(slot, Lineage("nr", 1))
    if fault == "torn":
        world.pool.begin([slot])
    with pytest.raises(CheckpointMismatchError):
        world.store.finish(build, prefill.lease, extras)
    # nothing has moved: it can be abandoned
    assert prefill.lease.is_held
    assert world.store.is_building(A, (1, 2, 3))
    world.abandon(prefill)
    world.check_empty()


def test_a_hold_is_released_once() -> None:
    world = World()
    hold = world.hold(world.add((1,)))
    world.release(hold)
    with pytest.raises(OwnershipError):
        world.store.release(hold)
    with pytest.raises(OwnershipError):
        _ = hold.entries
    world.check_empty()


def test_one_chunk_twice_in_a_prompt() -> None:
    world = World()
    entry = world.add((1,))
    hold = world.hold(entry, entry)
    assert hold.entries == (entry, entry)
    assert entry.pins == 2
    with pytest.raises(OwnershipError):
        world.store.remove(entry)
    assert world.store.flush() == 0
    world.check()
    world.release(hold)
    world.store.remove(entry)
    with pytest.raises(OwnershipError):
        world.store.remove(entry)
    with pytest.raises(OwnershipError, match="not kept any more"):
        world.store.hold([entry])
    world.check_empty()


def test_least_recently_used_goes_first() -> None:
    world = World(max_rows=6)
    a, b, c = (world.add((token, token)) for token in (1, 2, 3))
    world.release(world.hold(a))
    world.add((4,))
    assert world.store.find(A, b.tokens) is None
    assert world.store.find(A, a.tokens) is a
    hold = world.hold(c)
    world.add((5, 5, 5))
    assert [tokens for _, tokens in world.kept()] == [(4,), (3, 3), (5, 5, 5)]
    world.check()
    world.release(hold)
    world.check_empty()


@pytest.mark.parametrize(("max_rows", "max_inputs"), [(2, 100), (100, 2)])
def test_a_budget_of_one_chunk_less_one_keeps_nothing(max_rows: int, max_inputs: int) -> None:
    world = World(max_rows=max_rows, max_inputs=max_inputs)
    small = world.add((1, 2))
    with pytest.raises(CapacityError, match="a chunk of 3 tokens"):
        world.begin((1, 2, 3))
    # nothing was evicted for what can never be there
    assert world.store.find(A, (1, 2)) is small
    world.check_empty()


def test_extras_have_a_limit_of_their_own() -> None:
    world = World(max_inputs=4)
    world.add((1, 2, 3))
    build = world.begin((4, 5))
    assert world.kept() == []
    assert world.store.extra_bytes == 2 * INPUT_BYTES
    with pytest.raises(CapacityError):
        world.begin((6, 7, 8))
    world.finish(build)
    world.check_empty()


def test_held_chunks_are_in_nobodys_way_for_ever() -> None:
    world = World(max_rows=4)
    hold = world.hold(world.add((1, 2, 3)))
    with pytest.raises(CapacityError, match="3 and"):
        world.begin((4, 5))
    world.release(hold)
    world.add((4, 5))
    world.check_empty()


def test_rows_that_others_hold() -> None:
    """Old chunks give way where the pool has no rows; if that is not enough, all is as it was but for them."""
    world = World(rows=10, max_rows=10)
    world.add((1, 2, 3))
    foreign = world.kv.allocate(5)
    world.add((4, 5, 6, 7))
    assert [tokens for _, tokens in world.kept()] == [(4, 5, 6, 7)]
    hold = world.hold(world.store.find(A, (4, 5, 6, 7)))
    with pytest.raises(CapacityError):
        world.begin((8, 9))
    world.release(hold)
    world.kv.free(foreign)
    world.check_empty()


def test_whoever_owns_the_pool_can_make_room_first() -> None:
    """Rows are asked for where prefixes are evicted, before a chunk has to go."""
    asked = []

    def allocate(count: int) -> torch.Tensor:
        asked.append(count)
        if len(asked) == 2:
            world.kv.free(prefix)
        return world.kv.allocate(count)

    world = World(rows=6, allocate=allocate)
    prefix = world.kv.allocate(3)
    kept = world.add((1, 2))
    world.add((3, 4, 5))
    assert asked == [2, 3]
    assert world.store.find(A, (1, 2)) is kept
    world.check_empty()


def test_reclaim_gives_rows_back() -> None:
    world = World()
    for n in range(1, 5):
        world.add((n, n))
    hold = world.hold(world.store.find(A, (1, 1)))
    assert world.store.reclaim(3) == 4
    assert [tokens for _, tokens in world.kept()] == [(4, 4), (1, 1)]
    assert world.store.reclaim(100) == 2
    assert world.store.reclaim(1) == 0
    world.release(hold)
    world.check_empty()


def test_a_chunk_goes_with_its_state() -> None:
    """Where a slot is needed, the tiers take the oldest state; without one there is no entry."""
    world = World(slots=3)
    a, b = world.add((1,)), world.add((2,))
    hold = world.hold(a)
    world.acquire()
    world.acquire()
    assert [tokens for _, tokens in world.kept()] == [(1,)]
    with pytest.raises(OwnershipError):
        world.store.hold([b])
    with pytest.raises(CapacityError):
        world.acquire()
    world.check()
    world.release(hold)
    world.acquire()
    assert world.kept() == []
    assert world.store.rows == 0
    world.check_empty()


def test_packed_states_stay_entries() -> None:
    world = World(slots=2, packed=2)
    entries = [world.add((n, n)) for n in (1, 2)]
    world.tiers.maintain()
    world.tiers.finish()
    assert {entry.checkpoint.tier for entry in entries} == {"compressed"}
    hold = world.hold(*entries)
    world.check()
    world.release(hold)
    world.store.remove(entries[0])
    world.check_empty()


def test_no_slot_for_a_build() -> None:
    world = World(slots=1)
    world.acquire()
    with pytest.raises(CapacityError):
        world.begin((1, 2))
    world.check_empty()


def test_options_are_part_of_what_is_found() -> None:
    plain, rich = World(options=ChunkOptions()), World()
    assert plain.add((1,)).key != rich.add((1,)).key
    plain.check_empty()


def test_a_failure_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    kept = world.add((1, 2))

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "_allocate", fail)
        with pytest.raises(RuntimeError):
            world.begin((3, 4))
    world.check()
    prefill = world.begin((3, 4))
    with monkeypatch.context() as patch:
        patch.setattr(world.tiers, "donate", fail)
        with pytest.raises(RuntimeError):
            world.finish(prefill)
    assert prefill.lease.is_held
    world.abandon(prefill)
    world.check()
    assert [tokens for _, tokens in world.kept()] == [kept.tokens]
    world.check_empty()


def _rows_of_another(world, entry):
    object.__setattr__(entry, "rows", next(e for e in world.store.entries.values() if e is not entry).rows)


def _freed_rows(world, entry):
    world.kv.free(entry.rows)


def _state_of_another(world, entry):
    world.pool.adopt(entry.checkpoint.slot, world.store.find(A, (3, 4)).chain.copy(), Lineage())


def _no_order(world, entry):
    world.store.order.discard(entry)


def _stray_pin(world, entry):
    entry.checkpoint.pins += 1


def _other_key(world, entry):
    world.store.entries[b"x"] = world.store.entries.pop(entry.key)


def _no_extras(world, entry):
    object.__setattr__(entry, "extras", Extras())


def _limit(world, entry):
    world.store.max_rows = 1


def _state_not_found(world, entry):
    world.tiers.order.discard(entry.checkpoint)


def _hold_on_nothing(world, entry):
    world.holds.append(type(world.hold(entry))([replace(entry)]))


CORRUPTIONS = [v for k, v in list(globals().items()) if k.startswith("_") and getattr(v, "__code__", None)]


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda f: f.__name__.strip("_"))
def test_integrity_notices(corrupt) -> None:
    world = World()
    entry, _ = world.add((1, 2)), world.add((3, 4))
    check_integrity(world.store, world.holds)
    corrupt(world, entry)
    with pytest.raises(IntegrityError):
        check_integrity(world.store, world.holds)


def test_a_live_slot_is_not_taken_for_a_chunk() -> None:
    """Slots of prefills and of running sequences are never evicted."""
    world = World(slots=2)
    world.begin((1,))
    world.begin((2,))
    with pytest.raises(CapacityError):
        world.tiers.acquire(LeaseState.LIVE)
    world.check_empty()
