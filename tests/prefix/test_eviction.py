"""What is evicted, in which order, and what happens when nothing may be."""

import pytest

from holdover.errors import CapacityError
from holdover.state import EXACT
from holdover.store import LeaseState
from tests.prefix.build import A, B, World

LIVE = LeaseState.LIVE
TEN = list(range(10))
PROMPTS = [[i, i, i] for i in range(4)]


def served(prompts, **sizes):
    world = World(**sizes)
    for prompt in prompts:
        world.serve(prompt)
    return world


def order(world):
    return [list(tokens) for _, tokens in world.states()]


# class 6: a hit refreshes only the state that it consumed


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (10, (2, 4, 6, 10, 8)),
        (9, (2, 4, 6, 10, 8)),
        (7, (2, 4, 8, 10, 6)),
        (3, (4, 6, 8, 10, 2)),
        (2, (2, 4, 6, 8, 10)),
    ],
)
def test_hit_refreshes_the_consumed_state_and_no_ancestor(length, expected):
    world = World()
    world.serve(TEN, stops=(2, 4, 6, 8))
    assert [len(tokens) for tokens in order(world)] == [2, 4, 6, 8, 10]
    world.abort(world.open(TEN[:length]))
    assert [len(tokens) for tokens in order(world)] == list(expected)


def test_ancestors_that_nobody_uses_leave_before_states_that_are_used():
    world = World(slots=4)
    world.serve(TEN, stops=(4,))
    world.serve([7, 7])
    for _ in range(3):
        world.abort(world.open([*TEN, 0]))
    world.serve([8, 8])
    world.serve([9, 9])
    assert TEN[:4] not in order(world)
    assert TEN in order(world)


@pytest.mark.parametrize(("verb", "extra"), [("match", ()), ("has_state", (EXACT,))])
def test_looking_changes_no_order_and_no_lock(verb, extra):
    world = served(PROMPTS)
    before = order(world), [node.depth for node in world.cache.rows.order]
    for prompt in PROMPTS[::-1]:
        getattr(world.cache, verb)(A, [*prompt, 9], *extra)
        getattr(world.cache, verb)(B, [*prompt, 9], *extra)
    assert (order(world), [node.depth for node in world.cache.rows.order]) == before
    world.check()
    assert list(world.cache.roots) == [A]


@pytest.mark.parametrize("used", range(3))
def test_least_recently_used_state_is_evicted_first(used):
    world = served(PROMPTS[:3], slots=4)
    world.abort(world.open([*PROMPTS[used], 9]))
    left = [prompt for prompt in PROMPTS[:3] if prompt != PROMPTS[used]]
    leases = [world.cache.tiers.acquire(LIVE) for _ in range(2)]
    assert order(world) == [left[1], PROMPTS[used]]
    assert world.tiers.counters["states_evicted"] == 1
    for lease in leases:
        lease.release()
    world.check()


def test_publishing_a_state_again_makes_it_the_newest_and_keeps_the_older_bytes():
    world = served(PROMPTS[:3])
    slot = world.node(PROMPTS[0]).checkpoint.slot
    sequence = world.open(PROMPTS[0], reuse=False)
    world.run(sequence)
    world.donate(sequence)
    assert order(world) == [PROMPTS[1], PROMPTS[2], PROMPTS[0]]
    assert world.node(PROMPTS[0]).checkpoint.slot == slot
    assert world.cache.counters["checkpoints_published"] == 3
    world.check()


# rows


@pytest.mark.parametrize("used", range(3))
def test_least_recently_used_leaf_gives_its_rows_first(used):
    world = served(PROMPTS[:3], rows=9)
    world.abort(world.open([*PROMPTS[used], 9]))
    victims = [prompt for prompt in PROMPTS[:3] if prompt != PROMPTS[used]]
    rows = world.cache.rows.allocate(1)
    assert world.depths([*victims[0], 9]) == (0, 0)
    assert world.depths([*victims[1], 9]) == (3, 3)
    assert len(order(world)) == 2, "a state without rows is no hit, and must not keep its slot"
    world.kv.free(rows)
    world.check()


def test_rows_that_lead_to_no_state_leave_before_older_rows_that_do():
    world = served(PROMPTS[:3], slots=4, rows=12)
    sequence = world.open(PROMPTS[0], reuse=False)
    world.run(sequence)
    world.publish_rows(sequence)
    assert order(world) == PROMPTS[:3], "rows are newer by now, the state is not"
    world.cache.tiers.acquire(LIVE).release()
    assert order(world) == PROMPTS[1:3]
    world.abort(sequence)
    world.kv.free(world.cache.rows.allocate(4))
    assert world.depths([*PROMPTS[0], 9]) == (0, 0)
    assert world.depths([*PROMPTS[1], 9]) == (3, 3)
    world.check()


def test_a_branch_is_evicted_leaf_by_leaf_and_its_trunk_last():
    world = served([[1, 2], [1, 2, 3], [1, 2, 3, 4]], rows=4)
    rows = [world.cache.rows.allocate(1)]
    assert world.depths([1, 2, 3, 4]) == (3, 3)
    rows.append(world.cache.rows.allocate(1))
    assert world.depths([1, 2, 3, 4]) == (2, 2)
    rows.append(world.cache.rows.allocate(2))
    assert world.depths([1, 2, 3, 4]) == (0, 0)
    assert not world.cache.roots
    assert world.cache.counters["rows_evicted"] == 4
    for taken in rows:
        world.kv.free(taken)
    world.check()


@pytest.mark.parametrize("wanted", [1, 4])
def test_rows_that_a_sequence_holds_cannot_be_evicted_and_the_attempt_evicts_nothing(wanted):
    world = served([TEN[:6], [7, 7]], rows=8)
    sequence = world.open(TEN)
    before = set(world.rows()), world.states()
    with pytest.raises(CapacityError, match="3 KV rows wanted"):
        world.cache.rows.allocate(3)
    assert (set(world.rows()), world.states()) == before
    assert world.cache.rows.balance() == (0, 2, 6, 8)
    world.abort(sequence)
    assert world.cache.rows.balance() == (0, 8, 0, 8)
    world.kv.free(world.cache.rows.allocate(wanted))
    world.check()


def test_the_oldest_row_entry_is_always_a_leaf():
    world = World(slots=12)
    world.serve(TEN, stops=range(1, 10))
    world.serve([*TEN[:5], 50, 51], stops=(6,))
    world.serve([*TEN[:2], 60])
    while world.cache.rows.order:
        oldest = next(iter(world.cache.rows.order))
        assert oldest.is_leaf
        world.cache.rows._evict_leaf()
        world.check()


# class 19: an optional checkpoint stops nothing


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_when_every_slot_is_live_a_checkpoint_is_refused_and_the_run_goes_on(slots):
    world = World(slots=slots)
    sequences = [world.open([i, *TEN]) for i in range(slots)]
    for sequence in sequences:
        world.run(sequence, TEN[:3])
    balance = world.cache.tiers.balance("native")
    assert balance == (0, 0, slots, slots)
    for verb in (
        lambda: world.checkpoint(sequences[0]),
        lambda: world.open(TEN),
        lambda: world.cache.tiers.acquire(LIVE),
    ):
        with pytest.raises(CapacityError):
            verb()
        assert world.cache.tiers.balance("native") == balance
        world.check()
    for sequence in sequences:
        world.run(sequence)
        world.donate(sequence)
    world.check_empty()


def test_opening_that_is_refused_leaves_no_namespace_behind():
    world = World(slots=1)
    world.open(TEN, A)
    with pytest.raises(CapacityError):
        world.open(TEN, B)
    assert list(world.cache.roots) == [A]


# a pool of one slot: the checkpoint is taken over


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_one_slot_serves_a_conversation_turn_after_turn(turns):
    world = World(slots=1)
    prompt = TEN[:4]
    for turn in range(turns):
        sequence = world.open(prompt)
        assert len(sequence.tokens) == (0 if turn == 0 else len(prompt) - 2)
        assert world.states() == [], "the only slot is live"
        world.run(sequence)
        world.check()
        world.donate(sequence)
        assert order(world) == [prompt]
        prompt = [*prompt, 20 + turn, 30 + turn]
    world.check_empty()


def test_taking_over_moves_the_slot_and_no_bytes(monkeypatch):
    world = World(slots=1)
    world.serve(TEN[:4])
    slot = world.node(TEN[:4]).checkpoint.slot
    monkeypatch.setattr(world.pool, "copy", None)
    sequence = world.open(TEN)
    assert sequence.lease.slot == slot
    assert len(sequence.tokens) == 4


def test_other_states_are_evicted_before_the_one_to_resume_is_taken_over():
    world = served([[7, 7], TEN[:4], [8, 8]], slots=3)
    world.open(TEN)
    assert order(world) == [[8, 8], TEN[:4]]
    world.open(TEN)
    assert order(world) == [TEN[:4]]
    world.open(TEN)
    assert order(world) == []
    world.check()
    with pytest.raises(CapacityError):
        world.open(TEN)
    world.check()


def test_pinned_state_is_neither_evicted_nor_taken_over():
    world = World(slots=1)
    world.serve(TEN[:4])
    checkpoint = world.node(TEN[:4]).checkpoint
    checkpoint.pins += 1
    assert world.cache.tiers.balance("native") == (0, 0, 1, 1)
    for verb in (lambda: world.open(TEN), lambda: world.open([9]), lambda: world.cache.tiers.acquire(LIVE)):
        with pytest.raises(CapacityError):
            verb()
    assert world.cache.flush() == 0
    world.check()
    checkpoint.pins -= 1
    world.open(TEN)
    world.check()


# flush


@pytest.mark.parametrize("running", [False, True])
def test_flush_drops_all_that_no_sequence_holds(running):
    world = World()
    world.serve(TEN, stops=(4, 8))
    world.serve([*TEN[:6], 50])
    world.serve(TEN, B)
    if running:
        sequence = world.open(TEN[:6])
    assert world.cache.flush() == 5
    assert set(world.rows()) == ({(A, tuple(TEN[: i + 1])) for i in range(4)} if running else set())
    world.check()
    if running:
        world.run(sequence)
        world.donate(sequence)
        world.check()
    world.check_empty()


# balances


def test_a_snapshot_on_its_way_into_the_tree_counts_as_locked():
    world = World(slots=3)
    sequence = world.open(TEN)
    world.run(sequence)
    checkpoint = world.tiers.snapshot(sequence.lease.slot)
    assert world.cache.tiers.balance("native") == (1, 0, 2, 3)
    world.cache.publish(sequence.hold, sequence.tokens, sequence.rows, checkpoint)
    assert world.cache.tiers.balance("native") == (1, 1, 1, 3)
