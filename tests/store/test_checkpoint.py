from dataclasses import replace

import pytest

from holdover.errors import CheckpointMismatchError, OwnershipError
from holdover.state import EXACT, KeyChain, SlotPool
from holdover.store import Checkpoint, LeaseState, SlotAllocator, StateTiers
from tests.state.build import LAYOUTS, ONE, advance, assert_state_of, bytes_of, same_bytes

LIVE, CACHED = LeaseState
TOKENS = [1, 2, 3]
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def stored(slots, tokens=TOKENS):
    lease = slots.acquire(CACHED)
    slots.pool.reset(lease.slot, b"model")
    advance(slots.pool, lease.slot, tokens)
    return Checkpoint(slots.pool.header(lease.slot), lease, EXACT)


def allocator(slots=4, layout=ONE):
    return SlotAllocator(SlotPool(layout, slots), poison=True)


def restore(slots, checkpoint, slot, expect):
    StateTiers(slots).restore(checkpoint, slot, expect)


def of(tokens, namespace=b"model"):
    chain = KeyChain(namespace)
    chain.extend(tokens)
    return chain


def at(depth, chain):
    """A chain that claims another depth for its key."""
    chain.depth = depth
    return chain


@every_layout
@pytest.mark.parametrize("tokens", [[], [5], TOKENS])
def test_restored_slot_is_the_checkpoint_to_the_last_bit(layout, tokens):
    slots = allocator(layout=layout)
    checkpoint, lease = stored(slots, tokens), slots.acquire()
    restore(slots, checkpoint, lease.slot, of(tokens))
    assert_state_of(slots.pool, lease.slot, tokens)
    assert same_bytes(bytes_of(slots.pool, lease.slot), bytes_of(slots.pool, checkpoint.slot))
    assert slots.pool.header(lease.slot) == checkpoint.header


# depth and key are verified on restore, by both witnesses (classes 2, 3 and 11)


def header_says(change):
    def damage(slots, checkpoint):
        checkpoint.header = replace(checkpoint.header, **change)

    return damage


def slot_holds(tokens):
    def damage(slots, checkpoint):
        slots.pool.reset(checkpoint.slot, b"model")
        advance(slots.pool, checkpoint.slot, tokens)

    return damage


def slot_is_torn(slots, checkpoint):
    slots.pool.begin([checkpoint.slot])


def slot_misses_a_layer(slots, checkpoint):
    with pytest.raises(CheckpointMismatchError):
        advance(slots.pool, checkpoint.slot, [], skip=[0])


DAMAGES = {
    "header-depth": header_says({"depth": 2}),
    "header-key": header_says({"key": b"other"}),
    "header-layout": header_says({"layout": "other"}),
    "slot-shallower": slot_holds(TOKENS[:2]),
    "slot-deeper": slot_holds([*TOKENS, 4]),
    "slot-of-others": slot_holds([3, 2, 1]),
    "slot-empty": slot_holds([]),
    "slot-torn": slot_is_torn,
    "slot-misses-a-layer": slot_misses_a_layer,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_restore_refuses_when_either_witness_disagrees(damage):
    slots = allocator()
    checkpoint, lease = stored(slots), slots.acquire()
    damage(slots, checkpoint)
    before = bytes_of(slots.pool, lease.slot)
    with pytest.raises(CheckpointMismatchError):
        restore(slots, checkpoint, lease.slot, of(TOKENS))
    assert same_bytes(bytes_of(slots.pool, lease.slot), before)
    assert not slots.pool.is_whole(lease.slot)


@pytest.mark.parametrize(
    "expect",
    [of([1, 2]), of([*TOKENS, 4]), of([3, 2, 1]), of(TOKENS, b"tenant"), at(2, of(TOKENS)), at(3, of([1, 2]))],
    ids=["shallower", "deeper", "other-tokens", "other-tenant", "key-only", "depth-only"],
)
def test_restore_refuses_what_was_not_wanted(expect):
    slots = allocator()
    checkpoint, lease = stored(slots), slots.acquire()
    with pytest.raises(CheckpointMismatchError, match="wanted depth"):
        restore(slots, checkpoint, lease.slot, expect)
    assert not slots.pool.is_whole(lease.slot)


# a checkpoint follows nobody (class 8)


@every_layout
def test_restoring_twice_gives_independent_states(layout):
    slots = allocator(layout=layout)
    checkpoint, ours, theirs = stored(slots), slots.acquire(), slots.acquire()
    before = bytes_of(slots.pool, checkpoint.slot)
    restore(slots, checkpoint, ours.slot, of(TOKENS))
    advance(slots.pool, ours.slot, [9])
    restore(slots, checkpoint, theirs.slot, of(TOKENS))
    advance(slots.pool, ours.slot, [9, 9])
    assert_state_of(slots.pool, theirs.slot, TOKENS)
    assert_state_of(slots.pool, ours.slot, [*TOKENS, 9, 9, 9])
    assert same_bytes(bytes_of(slots.pool, checkpoint.slot), before)


# ownership (class 10)


def test_checkpoint_takes_the_lease_over():
    slots = allocator()
    lease = slots.acquire(CACHED)
    slots.pool.reset(lease.slot, b"model")
    checkpoint = Checkpoint(slots.pool.header(lease.slot), lease, EXACT)
    assert checkpoint.tier == "native"
    for use in (lease.release, lambda: lease.move(LIVE), lambda: lease.slot):
        with pytest.raises(OwnershipError):
            use()
    assert slots.count(CACHED) == 1
    checkpoint.drop()
    assert slots.num_free == 4


@pytest.mark.parametrize("end", ["live", "released", "moved"])
def test_checkpoint_needs_a_cached_lease(end):
    slots = allocator()
    lease = slots.acquire(LIVE if end == "live" else CACHED)
    slots.pool.reset(lease.slot, b"model")
    header = slots.pool.header(lease.slot)
    if end == "released":
        lease.release()
    elif end == "moved":
        lease.move(CACHED)
    with pytest.raises(OwnershipError):
        Checkpoint(header, lease, EXACT)
    slots.check_integrity()


@pytest.mark.parametrize("first", ["drop", "surrender"])
@pytest.mark.parametrize("then", ["drop", "surrender", "slot"])
def test_checkpoint_ends_once(first, then):
    slots = allocator()
    checkpoint = stored(slots)
    getattr(checkpoint, first)()
    with pytest.raises(OwnershipError):
        getattr(checkpoint, then)()


def replace_bytes(slots, checkpoint):
    other = slots.acquire(CACHED)
    slots.pool.copy(checkpoint.slot, other.slot)
    checkpoint.replace_bytes(checkpoint.header, other, EXACT)


VERBS = {
    "drop": lambda slots, checkpoint: checkpoint.drop(),
    "surrender": lambda slots, checkpoint: checkpoint.surrender(),
    "replace_bytes": replace_bytes,
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_pinned_checkpoint_stays(verb):
    slots = allocator()
    checkpoint = stored(slots)
    slot = checkpoint.slot
    checkpoint.pins += 1
    with pytest.raises(OwnershipError, match="at depth 3 is pinned 1 times"):
        verb(slots, checkpoint)
    assert checkpoint.slot == slot
    assert_state_of(slots.pool, slot, TOKENS)
    checkpoint.pins -= 1
    verb(slots, checkpoint)


def test_surrendered_bytes_become_the_live_state_without_a_copy():
    slots = allocator()
    checkpoint = stored(slots)
    slot = checkpoint.slot
    lease = checkpoint.surrender()
    assert (lease.slot, lease.state) == (slot, LIVE)
    assert_state_of(slots.pool, slot, TOKENS)
    slots.check_integrity()


def test_replaced_bytes_are_given_back_once_and_the_new_ones_stand():
    slots = allocator()
    checkpoint = stored(slots)
    slot = checkpoint.slot
    replace_bytes(slots, checkpoint)
    assert checkpoint.slot != slot
    assert_state_of(slots.pool, checkpoint.slot, TOKENS)
    assert not slots.pool.is_whole(slot)
    assert (slots.count(CACHED), slots.num_free) == (1, 3)
    slots.check_integrity()
