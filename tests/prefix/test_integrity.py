"""The integrity check finds every kind of damage that it promises to find."""

from dataclasses import replace

import pytest

from holdover.errors import IntegrityError
from holdover.prefix import check_integrity, tree
from holdover.prefix.tree import Root
from holdover.store import LeaseState
from tests.prefix.build import A, B, World
from tests.state.build import advance

TEN = list(range(10))


@pytest.fixture
def world():
    """Checkpoints at 4 and 8 and a branch at 6 that ends at 8; a sequence holds the first 4 tokens and owns 3 rows."""
    world = World()
    world.serve(TEN[:8], stops=(4,))
    world.serve([*TEN[:6], 50, 51])
    sequence = world.open([*TEN[:5], 60, 61])
    world.run(sequence)
    world.check()
    return world


DAMAGES = []


def damage(function):
    DAMAGES.append(function)
    return function


@damage
def node_lost_its_parent(w):
    w.node(TEN[:8]).parent = w.cache.roots[A]


@damage
def node_hangs_under_another_token(w):
    trunk = w.node(TEN[:4])
    trunk.children[9] = trunk.children.pop(4)


@damage
def rows_and_tokens_differ(w):
    node = w.node(TEN[:8])
    node.rows = node.rows[:-1]


@damage
def empty_edge(w):
    node = w.node(TEN[:8])
    node.tokens, node.rows = (), node.rows[:0]


@damage
def row_order_lost_a_node(w):
    w.cache.rows.order.discard(w.node(TEN[:8]))


@damage
def row_order_has_a_stranger(w):
    w.cache.rows.order.touch(Root(b""))


@damage
def row_order_has_a_parent_before_its_child(w):
    w.cache.rows.order.demote(w.node(TEN[:4]))


@damage
def state_order_lost_a_node(w):
    w.tiers.order.discard(w.node(TEN[:8]).checkpoint)


@damage
def state_order_has_a_node_without_state(w):
    w.tiers.order.touch(w.node(TEN[:6]))


@damage
def branches_miscounted(w):
    w.node(TEN[:4]).branches += 1


@damage
def saved_tokens_miscounted(w):
    w.node(TEN[:6]).saved -= 4


@damage
def hit_that_the_tree_does_not_know_of(w):
    w.node(TEN[:8]).checkpoint.hits += 1


@damage
def state_that_was_not_told(w):
    w.node(TEN[:4]).checkpoint.branches += 1


@damage
def lock_leaked(w):
    w.node(TEN[:8]).locks += 1


@damage
def lock_missing(w):
    w.node(TEN[:4]).locks = 0


@damage
def lock_leaked_on_the_root(w):
    w.cache.roots[A].locks += 1


@damage
def held_node_left_the_tree(w):
    del w.cache.roots[A].children[0]


@damage
def root_left_behind(w):
    w.cache.roots[B] = Root(B)


@damage
def root_under_another_name(w):
    w.cache.roots[B] = w.cache.roots.pop(A)


@damage
def header_of_another_depth(w):
    node = w.node(TEN[:8])
    node.checkpoint.header = replace(node.checkpoint.header, depth=7)


@damage
def slot_holds_another_state(w):
    slot = w.node(TEN[:8]).checkpoint.slot
    w.pool.copy(w.node(TEN[:4]).checkpoint.slot, slot)


@damage
def slot_is_torn(w):
    w.pool.begin([w.node(TEN[:8]).checkpoint.slot])


@damage
def slot_was_advanced(w):
    advance(w.pool, w.node(TEN[:8]).checkpoint.slot, [1])


@damage
def states_of_equal_depth_swapped(w):
    ours, theirs = w.node(TEN[:8]), w.node([*TEN[:6], 50, 51])
    ours.checkpoint, theirs.checkpoint = theirs.checkpoint, ours.checkpoint


@damage
def two_entries_with_one_slot(w):
    node = w.node(TEN[:8])
    w.node([*TEN[:6], 50, 51]).checkpoint = node.checkpoint


@damage
def checkpoint_forgotten(w):
    node = w.node(TEN[:8])
    w.tiers.order.discard(node.checkpoint)
    tree.take_state(node)


@damage
def cached_lease_leaked(w):
    w.slots.acquire(LeaseState.CACHED)


@damage
def live_lease_leaked(w):
    w.slots.acquire(LeaseState.LIVE)


@damage
def rows_leaked(w):
    w.kv.allocate(1)


@damage
def row_of_the_tree_was_freed(w):
    w.kv.free(w.node(TEN[:8]).rows)


@damage
def row_owned_by_two_nodes(w):
    ours, theirs = w.node(TEN[:8]), w.node([*TEN[:6], 50, 51])
    w.kv.free(theirs.rows[:1])
    theirs.rows[0] = ours.rows[0]


@damage
def row_of_the_tree_is_free_while_an_unknown_one_is_used(w):
    node = w.node(TEN[:8])
    stray = w.kv.allocate(1)
    w.kv.free(node.rows[:1])
    assert stray[0] not in node.rows


@damage
def kept_without_a_pin(w):
    w.node(TEN[:8]).checkpoint.is_kept = True


@damage
def pin_that_keeps_nothing(w):
    w.pin(A, TEN[:8])
    w.node(TEN[:8]).checkpoint.is_kept = False


@damage
def pin_lost_its_lock(w):
    w.pin(A, TEN[:8])
    w.node(TEN[:8]).locks -= 1


@damage
def pin_forgotten(w):
    w.pin(A, TEN[:8])
    w.cache.pins._holds.clear()


@pytest.mark.parametrize("harm", DAMAGES, ids=lambda harm: harm.__name__)
def test_damage_is_found(world, harm):
    harm(world)
    with pytest.raises(IntegrityError):
        check_integrity(world.cache, [s.hold for s in world.running], owned_rows=3, live_slots=1)


@pytest.mark.parametrize(
    ("holds", "owned_rows", "live_slots"), [(0, 3, 1), (2, 3, 1), (1, 2, 1), (1, 4, 1), (1, 3, 0), (1, 3, 2)]
)
def test_a_caller_that_miscounts_is_told(world, holds, owned_rows, live_slots):
    hold = world.running[0].hold
    with pytest.raises(IntegrityError):
        check_integrity(world.cache, [hold] * holds, owned_rows=owned_rows, live_slots=live_slots)


def test_the_check_changes_nothing(world):
    before = list(world.rows()), world.states(), [node.depth for node in world.cache.rows.order]
    world.check()
    assert (list(world.rows()), world.states(), [node.depth for node in world.cache.rows.order]) == before
