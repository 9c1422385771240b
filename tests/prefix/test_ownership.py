"""Who owns slots, rows and claims; nothing is owned twice, used after it ended, or changed by another."""

import pytest
import torch

from holdover.errors import OwnershipError
from holdover.state import EXACT
from holdover.store import Checkpoint, LeaseState
from tests.prefix.build import A, World
from tests.state import build as states
from tests.state.build import advance, assert_state_of, bytes_of, same_bytes

LIVE = LeaseState.LIVE
TEN = list(range(10))
every_layout = pytest.mark.parametrize("state", states.LAYOUTS.values(), ids=states.LAYOUTS)


# class 8: the snapshot does not follow the live run


@every_layout
def test_published_checkpoint_does_not_follow_the_live_run(state):
    world = World(state=state)
    sequence = world.open(TEN)
    world.run(sequence, TEN[:4])
    world.checkpoint(sequence)
    slot = world.node(TEN[:4]).checkpoint.slot
    before = bytes_of(world.pool, slot)
    assert slot != sequence.lease.slot
    for _ in range(3):
        world.run(sequence, TEN[:2])
        assert same_bytes(bytes_of(world.pool, slot), before)
    world.abort(sequence)
    assert same_bytes(bytes_of(world.pool, slot), before)


@every_layout
def test_two_runs_resumed_from_one_checkpoint_do_not_meet(state):
    world = World(state=state)
    world.serve(TEN[:4])
    stored = world.node(TEN[:4]).checkpoint.slot
    before = bytes_of(world.pool, stored)
    ours = world.open([*TEN[:4], 7, 7])
    world.run(ours)
    theirs = world.open([*TEN[:4], 8])
    assert_state_of(world.pool, theirs.lease.slot, TEN[:4])
    world.run(theirs)
    world.run(ours, [7])
    assert_state_of(world.pool, theirs.lease.slot, [*TEN[:4], 8])
    assert_state_of(world.pool, ours.lease.slot, [*TEN[:4], 7, 7, 7])
    assert same_bytes(bytes_of(world.pool, stored), before)
    world.check()


def test_donated_slot_becomes_the_checkpoint_without_a_copy(monkeypatch):
    world = World()
    sequence = world.open(TEN)
    world.run(sequence)
    slot = sequence.lease.slot
    monkeypatch.setattr(world.pool, "copy", None)
    world.donate(sequence)
    assert world.node(TEN).checkpoint.slot == slot


def test_finished_and_restarted_request_does_not_share_its_old_slot():
    world = World()
    world.serve(TEN)
    stored = world.node(TEN).checkpoint.slot
    again = world.open(TEN)
    assert again.lease.slot != stored
    assert again.tokens == []


# class 10: released once, and not used afterwards


@pytest.mark.parametrize("twin", [False, True], ids=["published", "already-present"])
def test_donated_lease_is_dead_for_its_publisher(twin):
    world = World()
    if twin:
        world.serve(TEN)
    sequence = world.open(TEN, reuse=False)
    world.run(sequence)
    lease = sequence.lease
    checkpoint = world.tiers.donate(lease)
    rows = world.cache.publish(sequence.hold, TEN, sequence.rows, checkpoint)
    for use in (lease.release, lambda: lease.move(LIVE), lambda: lease.slot, lambda: world.tiers.donate(lease)):
        with pytest.raises(OwnershipError):
            use()
    if twin:
        # the tree kept its own: this one was given back, and can be neither used nor given back again
        with pytest.raises(OwnershipError):
            world.cache.publish(sequence.hold, TEN, rows, checkpoint)
        with pytest.raises(OwnershipError):
            checkpoint.drop()
    else:
        assert world.node(TEN).checkpoint is checkpoint
    world.cache.release(sequence.hold)
    world.running.clear()
    world.check()


def test_live_lease_cannot_become_a_checkpoint():
    world = World()
    sequence = world.open(TEN)
    world.run(sequence)
    with pytest.raises(OwnershipError, match="not a live one"):
        Checkpoint(world.pool.header(sequence.lease.slot), sequence.lease, EXACT)
    assert not list(world.rows())
    world.check()


@pytest.mark.parametrize("resumed", [0, 4])
def test_released_hold_cannot_be_used(resumed):
    world = World()
    if resumed:
        world.serve(TEN[:resumed])
    sequence = world.open(TEN)
    hold = sequence.hold
    world.abort(sequence)
    assert not hold.is_held
    uses = [
        lambda: world.cache.release(hold),
        lambda: world.cache.publish(hold, TEN, torch.arange(10), None),
        lambda: hold.depth,
        hold.rows,
        hold.drop,
    ]
    for use in uses:
        with pytest.raises(OwnershipError, match="after it was released"):
            use()
    world.check()


# rows


def test_rows_that_the_tree_had_already_replace_the_sequences_own():
    world = World()
    ours, theirs = world.open(TEN), world.open([*TEN[:6], 50])
    world.run(ours)
    world.run(theirs)
    world.donate(ours)
    mine = theirs.rows.clone()
    world.publish_rows(theirs)
    assert theirs.rows[:6].tolist() == world.node(TEN[:6]).rows.tolist()
    assert theirs.rows[6:].tolist() == mine[6:].tolist()
    assert not world.kv._is_used[mine[:6]].any()
    world.check()


def test_tree_does_not_follow_the_publishers_list_of_rows():
    world = World()
    sequence = world.open(TEN)
    world.run(sequence, TEN[:6])
    given = sequence.rows
    returned = world.cache.publish(sequence.hold, sequence.tokens, given, None)
    sequence.rows = returned.clone()
    given.zero_()
    returned.zero_()
    world.check()
    # the same after a split, and for what a hold hands out
    world.serve([*TEN[:3], 50])
    sequence.hold.rows().zero_()
    world.check()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda rows, free: torch.cat([rows[:-1], free]),
        lambda rows, free: torch.cat([free, rows[1:]]),
        lambda rows, free: torch.cat([rows[:-1], rows[-2:-1]]),
        lambda rows, free: torch.cat([rows[:-1], torch.tensor([0])]),
    ],
    ids=["last-is-free", "first-is-free", "named-twice", "sink"],
)
@pytest.mark.parametrize("present", [0, 4, 10])
def test_rows_that_nobody_owns_cannot_be_published(spoil, present):
    world = World()
    if present:
        world.serve(TEN[:present])
    sequence = world.open(TEN, reuse=False)
    world.run(sequence)
    before = list(world.rows())
    with pytest.raises(OwnershipError, match="not in use, or named twice"):
        world.cache.publish(sequence.hold, TEN, spoil(sequence.rows, torch.tensor([150])), None)
    assert list(world.rows()) == before
    world.check()
    world.donate(sequence)
    world.check_empty()


def test_rows_of_the_hold_named_again_for_new_tokens_are_refused():
    world = World()
    world.serve(TEN[:4])
    sequence = world.open(TEN[:8])
    with pytest.raises(OwnershipError):
        world.cache.publish(sequence.hold, TEN[:8], sequence.rows.repeat(2), None)
    world.check()


def test_rows_freed_by_their_sequence_and_again_by_the_cache_raise():
    world = World()
    world.serve(TEN[:4])
    sequence = world.open(TEN[:4], reuse=False)
    world.run(sequence)
    world.kv.free(sequence.rows)
    with pytest.raises(OwnershipError):
        world.cache.publish(sequence.hold, TEN[:4], sequence.rows, None)
    world.slots.check_integrity()
    assert world.depths(TEN) == (4, 4)


# class 12: dirty memory


def test_twenty_requests_with_preemption_never_see_what_was_there_before():
    world = World(slots=3, rows=60, state=states.MIXED)
    for i in range(20):
        prompt = [*TEN[: 2 + i % 5], i, i % 3]
        first = world.open(prompt)
        world.run(first, prompt[:3])
        world.check()
        world.abort(first)
        again = world.open(prompt)
        world.run(again)
        world.check()
        if i % 3:
            world.donate(again)
        else:
            world.abort(again)
    world.check_empty()


@pytest.mark.parametrize("prompt", [[], [5], TEN])
def test_opened_slot_is_never_poison(prompt):
    world = World(slots=2)
    for _ in range(3):
        sequence = world.open(prompt)
        assert not any(t.isnan().any() for t in world.pool.tensors_of(sequence.lease.slot))
        world.run(sequence)
        world.donate(sequence) if prompt else world.abort(sequence)


def test_step_that_failed_on_a_live_slot_harms_nothing_in_the_cache():
    world = World()
    world.serve(TEN[:4])
    sequence = world.open(TEN)
    world.pool.begin([sequence.lease.slot])
    world.abort(sequence)
    world.check()
    assert len(world.open(TEN).tokens) == 4
    advance(world.pool, world.running[-1].lease.slot, [])
    assert world.cache.match(A, TEN).node is world.node(TEN[:4])
