"""Class 9: whatever allocation or copy fails, everything balances afterwards and the same call then succeeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch

from holdover.codec import Codec
from holdover.errors import CapacityError
from holdover.prefix import cache as cache_module
from holdover.prefix import states as states_module
from holdover.state import SlotPool
from holdover.store import KVPool, PackedPool, SlotAllocator, StateTiers, TierOptions
from tests.prefix.build import World
from tests.store.tier_build import half

TEN = list(range(10))

# every call on the way that can fail: where it is looked up, and its name
FALLIBLE: list[tuple[Any, str]] = [
    (SlotAllocator, "acquire"),
    (StateTiers, "acquire"),
    (SlotPool, "copy"),
    (SlotPool, "reset"),
    (SlotPool, "header"),
    (KVPool, "allocate"),
    (KVPool, "free"),
    (KVPool, "are_used"),
    (cache_module, "chain_of"),
    (states_module, "chain_of"),
    (StateTiers, "restore"),
    (StateTiers, "verify"),
    (PackedPool, "pack"),
    (PackedPool, "unpack"),
    (PackedPool, "commit"),
    (Codec, "pack"),
    (Codec, "unpack"),
]


class Torn(RuntimeError):
    """A copy or reset that wrote some bytes and then failed."""


class Scenario(NamedTuple):
    """A world made ready, and the verb that will fail in it."""

    prepare: Callable[[], World]
    verb: Callable[[World], object]
    calls: set[str]


def opening_nothing_cached() -> World:
    return World()


def opening_a_hit() -> World:
    world = World()
    world.serve(TEN[:4])
    return world


def opening_with_eviction() -> World:
    world = World(slots=3)
    for prompt in ([7], [8], TEN[:4]):
        world.serve(prompt)
    return world


def opening_with_take_over() -> World:
    world = World(slots=1)
    world.serve(TEN[:4])
    return world


def half_way(slots: int = 4) -> World:
    """A sequence at depth 8, of which the tree has 4 as its own and 6 from another that diverged."""
    world = World(slots=slots)
    world.serve(TEN[:4])
    sequence = world.open(TEN)
    world.run(sequence, TEN[4:8])
    world.serve([*TEN[:6], 50])
    world.check()
    return world


def room_for_two() -> World:
    """A sequence that needs two rows more than are free, with other tenants' rows to evict."""
    world = World(rows=14)
    for prompt in ([7, 7], [8, 8], [9, 9]):
        world.serve(prompt)
    world.run(world.open(TEN), TEN[:6])
    return world


def tiered(slots: int = 3, packed: int = 2, **options: Any) -> World:
    return World(slots, packed=packed, codec=half(), options=TierOptions(**options))


def packed_hit(*prompts: list[int]) -> World:
    """Each prompt's state in a packed slot, those of ten's first four last."""
    world = tiered()
    for prompt in (*prompts, TEN[:4]):
        world.serve(prompt)
        world.tiers.maintain()
        world.tiers.maintain()
        assert world.node(prompt).checkpoint.tier == "compressed"
    return world


def opening_with_demotion() -> World:
    """Both tiers are full and the oldest is compressed: it makes way for a dense one, which makes way."""
    world = packed_hit([5])
    for prompt in ([7], [8], [9]):
        sequence = world.open(prompt)
        world.run(sequence)
        world.donate(sequence, dense=True)
    world.check()
    return world


def half_way_in_tiers(packed: int = 2, **options: Any) -> World:
    """A sequence that resumed lossily at 4 and stands at 8, where the tree has 6 from another, exact, one."""
    world = tiered(4, packed, **options)
    world.serve(TEN[:4])
    world.tiers.maintain()
    world.tiers.maintain()
    sequence = world.open(TEN)
    world.run(sequence, TEN[4:8])
    other = world.open([*TEN[:6], 50], max_losses=0)
    world.run(other)
    world.donate(other)
    world.check()
    return world


SCENARIOS = {
    "open-fresh": Scenario(opening_nothing_cached, lambda w: w.open(TEN), {"acquire", "reset"}),
    "open-hit": Scenario(opening_a_hit, lambda w: w.open(TEN), {"acquire", "copy", "restore", "chain_of", "header"}),
    "open-evicting": Scenario(opening_with_eviction, lambda w: w.open(TEN), {"acquire", "copy", "restore"}),
    "open-taking-over": Scenario(opening_with_take_over, lambda w: w.open(TEN), {"acquire", "chain_of", "header"}),
    "open-no-reuse": Scenario(opening_a_hit, lambda w: w.open(TEN, reuse=False), {"acquire", "reset"}),
    "checkpoint": Scenario(half_way, lambda w: w.checkpoint(w.running[0]), {"acquire", "copy", "header", "free"}),
    "checkpoint-evicting": Scenario(lambda: half_way(2), lambda w: w.checkpoint(w.running[0]), {"acquire", "copy"}),
    "publish-rows": Scenario(half_way, lambda w: w.publish_rows(w.running[0]), {"free", "are_used"}),
    "donate": Scenario(half_way, lambda w: w.donate(w.running[0]), {"header", "free", "are_used", "chain_of"}),
    "run": Scenario(half_way, lambda w: w.run(w.running[0]), {"allocate"}),
    "run-evicting": Scenario(room_for_two, lambda w: w.run(w.running[0]), {"allocate", "free"}),
    "flush": Scenario(half_way, lambda w: w.flush(), {"free"}),
    "open-packed": Scenario(packed_hit, lambda w: w.open(TEN), {"acquire", "unpack", "restore", "chain_of"}),
    "open-demoting": Scenario(opening_with_demotion, lambda w: w.open(TEN), {"acquire", "pack", "commit", "unpack"}),
    "open-exact": Scenario(packed_hit, lambda w: w.open(TEN, max_losses=0), {"acquire", "reset"}),
    "checkpoint-packing": Scenario(
        half_way_in_tiers, lambda w: w.checkpoint(w.running[0]), {"acquire", "pack", "commit", "header", "verify"}
    ),
    "checkpoint-packing-over": Scenario(
        lambda: half_way_in_tiers(1, dense_spill=False), lambda w: w.checkpoint(w.running[0]), {"pack", "commit"}
    ),
    "checkpoint-dense": Scenario(
        half_way_in_tiers, lambda w: w.checkpoint(w.running[0], dense=True), {"acquire", "copy", "header"}
    ),
}


@contextmanager
def failing(at: int | None, error: BaseException | None = None) -> Iterator[list[str]]:
    """Fail the ``at``-th call of those that can; yields the names of the calls made."""
    calls: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in FALLIBLE:
            patch.setattr(owner, name, _counting(calls, name, getattr(owner, name), at, error))
        yield calls


def _counting(
    calls: list[str], name: str, original: Callable[..., Any], at: int | None, error: BaseException | None
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        # calls that these make in turn are theirs, and are counted too
        calls.append(name)
        if len(calls) - 1 == at and error is not None:
            if isinstance(error, Torn) and name in ("copy", "reset"):
                _tear(name, args)
            raise error
        return original(*args, **kwargs)

    return call


def _tear(name: str, args: tuple[Any, ...]) -> None:
    pool, slot = args[0], args[2] if name == "copy" else args[1]
    pool.forget(slot)
    pool.tensors_of(slot)[0].fill_(float("inf"))


def calls_of(scenario: Scenario) -> list[str]:
    world = scenario.prepare()
    with failing(None) as calls:
        scenario.verb(world)
    world.check()
    return calls


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_goes_through_the_calls_that_it_is_about(name):
    assert SCENARIOS[name].calls <= set(calls_of(SCENARIOS[name]))


@pytest.mark.parametrize("error", [CapacityError("injected"), RuntimeError(), KeyboardInterrupt(), Torn()], ids=repr)
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_call_may_fail_once(name, error):
    scenario = SCENARIOS[name]
    for at, call in enumerate(calls_of(scenario)):
        world = scenario.prepare()
        running = len(world.running)
        try:
            with failing(at, error):
                scenario.verb(world)
        except type(error):
            assert len(world.running) == running
            world.check()
            scenario.verb(world)
        else:
            # taking over makes up for a slot that cannot be had, evicting for a demotion that fails
            survived = (call, type(error)) == ("acquire", CapacityError)
            assert survived or (call == "pack" and name == "open-demoting" and isinstance(error, Exception))
        world.check()
        for sequence in list(world.running):
            world.abort(sequence)
        world.check_empty()


@pytest.mark.parametrize("name", ["open-hit", "open-evicting", "open-taking-over"])
@pytest.mark.parametrize("error", [RuntimeError(), KeyboardInterrupt()], ids=repr)
def test_failed_opening_keeps_the_state_that_it_meant_to_resume(name, error):
    scenario = SCENARIOS[name]
    for at in range(len(calls_of(scenario))):
        world = scenario.prepare()
        with failing(at, error), pytest.raises(type(error)):
            scenario.verb(world)
        assert world.depths(TEN) == (4, 4)
        assert world.node(TEN[:4]).checkpoint.pins == 0


@pytest.mark.parametrize("error", [CapacityError("injected"), RuntimeError(), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("name", ["checkpoint", "publish-rows", "donate"])
def test_failed_publishing_changes_nothing_in_the_tree(name, error):
    scenario = SCENARIOS[name]
    for at in range(len(calls_of(scenario))):
        world = scenario.prepare()
        before = list(world.rows()), world.states(), [s.rows.tolist() for s in world.running]
        with failing(at, error), pytest.raises(type(error)):
            scenario.verb(world)
        assert (list(world.rows()), world.states(), [s.rows.tolist() for s in world.running]) == before
        assert torch.equal(world.running[0].hold.rows(), world.running[0].rows[:4])


@pytest.mark.parametrize("error", [CapacityError("injected"), RuntimeError(), KeyboardInterrupt()], ids=repr)
def test_failed_donation_of_what_must_be_packed_loses_at_most_its_own_state(error):
    def donate(world: World) -> None:
        world.donate(world.running[0])

    def prepared() -> World:
        return half_way_in_tiers(3, dense_spill=False)

    calls = calls_of(Scenario(prepared, donate, set()))
    assert {"pack", "commit", "verify", "free"} <= set(calls)
    for at in range(len(calls)):
        world = prepared()
        before = world.states()
        with failing(at, error), pytest.raises(type(error)):
            donate(world)
        assert world.states() == before
        world.check()
        for sequence in list(world.running):
            world.abort(sequence)
        world.check_empty()
