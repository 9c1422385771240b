import pytest

from holdover.errors import CapacityError, CheckpointMismatchError, IntegrityError, OwnershipError
from holdover.state import SINK, SlotPool
from holdover.store import LeaseState, SlotAllocator
from tests.state.build import LAYOUTS, ONE, advance, assert_state_of, bytes_of, same_bytes

LIVE, CACHED = LeaseState
every_state = pytest.mark.parametrize("state", LeaseState)


def allocator(slots=3, layout=ONE):
    return SlotAllocator(SlotPool(layout, slots), poison=True)


@every_state
def test_lease_owns_one_slot_until_it_is_released(state):
    slots = allocator()
    lease = slots.acquire(state)
    assert lease.state is state
    assert lease.is_held
    assert slots.count(state) == 1
    assert slots.num_free == 2
    lease.release()
    assert not lease.is_held
    assert slots.num_free == 3
    slots.check_integrity()


@pytest.mark.parametrize("size", [0, 1, 3])
def test_acquiring_when_every_slot_is_live_raises_and_changes_nothing(size):
    slots = allocator(size)
    leases = [slots.acquire() for _ in range(size)]
    assert sorted(lease.slot for lease in leases) == list(range(1, size + 1))
    before = [bytes_of(slots.pool, lease.slot) for lease in leases]
    with pytest.raises(CapacityError, match=f"all {size} native state slots"):
        slots.acquire()
    assert slots.count(LIVE) == size
    assert slots.num_free == 0
    assert all(same_bytes(bytes_of(slots.pool, x.slot), b) for x, b in zip(leases, before, strict=True))
    slots.check_integrity()


def test_no_lease_is_the_sink():
    slots = allocator(2)
    assert SINK not in {slots.acquire().slot, slots.acquire().slot}


# released or moved exactly once (class 10)


def released(lease):
    lease.release()


def moved(lease):
    lease.move(CACHED)


def moved_and_released(lease):
    lease.move(CACHED).release()


def slot_leased_again(lease):
    lease.release()
    lease._allocator.acquire()


@every_state
@pytest.mark.parametrize("end", [released, moved, moved_and_released, slot_leased_again])
@pytest.mark.parametrize(
    "use", [lambda x: x.slot, lambda x: x.release(), lambda x: x.move(LIVE)], ids=["slot", "release", "move"]
)
def test_lease_that_ended_cannot_be_used(state, end, use):
    slots = allocator(1)
    lease = slots.acquire(state)
    end(lease)
    owned = slots.count(LIVE), slots.count(CACHED)
    assert not lease.is_held
    with pytest.raises(OwnershipError, match="released or moved"):
        use(lease)
    assert (slots.count(LIVE), slots.count(CACHED)) == owned
    slots.check_integrity()


@every_state
@pytest.mark.parametrize("to", LeaseState)
def test_move_hands_over_the_slot_and_touches_no_byte(state, to):
    slots = allocator()
    lease = slots.acquire(state)
    slots.pool.reset(lease.slot, b"")
    advance(slots.pool, lease.slot, [1, 2])
    slot, before = lease.slot, bytes_of(slots.pool, lease.slot)
    successor = lease.move(to)
    assert (successor.slot, successor.state) == (slot, to)
    assert same_bytes(bytes_of(slots.pool, slot), before)
    assert_state_of(slots.pool, slot, [1, 2])
    assert slots.num_free == 2
    slots.check_integrity()


# dirty memory (class 12)


@pytest.mark.parametrize("poison", [False, True])
def test_released_slot_is_nobodys_state(poison):
    slots = SlotAllocator(SlotPool(ONE, 1), poison=poison)
    lease = slots.acquire()
    slots.pool.reset(lease.slot, b"")
    advance(slots.pool, lease.slot, [1])
    lease.release()
    again = slots.acquire()
    assert again.slot == 1
    with pytest.raises(CheckpointMismatchError, match="not whole"):
        slots.pool.begin([again.slot])


def test_step_cannot_commit_on_a_slot_released_meanwhile():
    slots = allocator(1)
    lease = slots.acquire()
    slots.pool.reset(lease.slot, b"")
    chains = slots.pool.begin([lease.slot])
    lease.release()
    again = slots.acquire()
    with pytest.raises(CheckpointMismatchError, match="not in the step"):
        slots.pool.commit([again.slot], chains, [[1]], {0})


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_fresh_and_freed_slots_are_poison_and_reset_or_copied_ones_are_not(layout):
    slots = allocator(3, layout)
    pool = slots.pool
    first, second, third = (slots.acquire() for _ in range(3))
    assert all(t.isnan().all() for lease in (first, second, third) for t in pool.tensors_of(lease.slot))
    pool.reset(first.slot, b"")
    advance(pool, first.slot, [3, 1])
    pool.copy(first.slot, second.slot)
    first.release()
    assert all(t.isnan().all() for t in pool.tensors_of(1))
    again = slots.acquire()
    pool.copy(second.slot, again.slot)
    pool.reset(second.slot, b"")
    assert_state_of(pool, again.slot, [3, 1])
    assert_state_of(pool, second.slot, [])


# integrity


def leaked(slots):
    slots._free.pop()


def freed_while_owned(slots):
    slots._free.append(1)


def in_the_free_list_twice(slots):
    slots._free.append(slots._free[0])


def owner_forgot(slots):
    slots._owners[1]._slot = None


def owner_of_another_slot(slots):
    slots._owners[1]._slot = 2


@pytest.mark.parametrize(
    "damage", [leaked, freed_while_owned, in_the_free_list_twice, owner_forgot, owner_of_another_slot]
)
def test_integrity_check_finds_damage(damage):
    slots = allocator()
    slots.acquire()
    slots.check_integrity()
    damage(slots)
    with pytest.raises(IntegrityError):
        slots.check_integrity()


def test_lease_that_the_allocator_does_not_know_cannot_be_released():
    slots = allocator()
    lease = slots.acquire()
    slots._owners.clear()
    with pytest.raises(OwnershipError, match="not owned by the lease"):
        lease.release()
