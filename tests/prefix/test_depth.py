"""Where a lookup resumes, and that what it finds there is the state and the rows of exactly those tokens."""

import pytest
import torch

from holdover.errors import CheckpointMismatchError
from holdover.prefix import tree
from holdover.state import EXACT
from holdover.store import LeaseState
from tests.prefix.build import A, B, World
from tests.state import build as states
from tests.store import build as rows_of_kv

TEN = list(range(10))
every_layout = pytest.mark.parametrize(
    ("state", "kv"),
    [
        (states.ONE, rows_of_kv.ONE),
        (states.MIXED, rows_of_kv.MIXED),
        (states.SAME_SIZE, rows_of_kv.MIXED),
        (states.NO_HISTORY, rows_of_kv.NONE),
    ],
    ids=["one", "mixed", "same-size", "no-attention"],
)


# class 5: identical prompt, no hit


@pytest.mark.parametrize(
    ("stops", "length", "resumed"),
    [
        ((4, 8), 10, 8),
        ((4, 8), 11, 10),
        ((4, 8), 9, 8),
        ((4, 8), 8, 4),
        ((4, 8), 5, 4),
        ((4, 8), 4, 0),
        ((4, 8), 1, 0),
        ((4, 8), 0, 0),
        ((), 10, 0),
        ((9,), 10, 9),
        ((1,), 2, 1),
        (range(1, 10), 10, 9),
    ],
)
def test_lookup_resumes_at_the_deepest_checkpoint_that_leaves_a_token(stops, length, resumed):
    world = World(slots=12)
    world.serve(TEN, stops=stops)
    prompt = [*TEN, 99][:length]
    before = list(world.rows())
    assert world.depths(prompt) == (resumed, min(length, 10))
    sequence = world.open(prompt)
    assert sequence.tokens == prompt[:resumed]
    assert (sequence.match.state_depth, sequence.hold.depth) == (resumed, resumed)
    assert list(world.rows()) == before, "opening must not change the tree"
    world.check()


@pytest.mark.parametrize("cut", range(11))
def test_lookup_that_ends_in_mid_edge_does_not_split_it(cut):
    world = World()
    world.serve(TEN)
    assert world.depths(TEN[:cut]) == (0, cut)
    world.open(TEN[:cut])
    assert [node.depth for node in tree.descendants(world.cache.roots[A])] == [10]
    world.check()


@pytest.mark.parametrize("shared", range(10))
def test_prompt_that_diverges_resumes_above_the_branch(shared):
    world = World()
    world.serve(TEN, stops=(4, 8))
    prompt = [*TEN[:shared], 50, 51, 52]
    assert world.depths(prompt) == (8 if shared >= 8 else 4 if shared >= 4 else 0, shared)
    world.serve(prompt)
    world.check()
    assert world.depths([*TEN, 0]) == (10, 10), "the older branch must not suffer"
    assert world.depths([*prompt, 0]) == (len(prompt), len(prompt))


# classes 1 and 2: no unit but the token


@pytest.mark.parametrize("depth", range(1, 41))
def test_any_depth_is_found_at_that_depth(depth):
    prompt = [token % 7 for token in range(41)]
    world = World(slots=3, rows=90)
    world.serve(prompt[:depth])
    for length in range(42):
        wanted = depth if length > depth else 0
        assert world.depths(prompt[:length]) == (wanted, min(length, depth))
    sequence = world.open(prompt)
    world.run(sequence)
    world.donate(sequence)
    world.check()
    assert world.depths([*prompt, 0]) == (41, 41)


@every_layout
@pytest.mark.parametrize("chunk", [1, 2, 3, 64])
@pytest.mark.parametrize("stop", [1, 2, 29])
def test_resumed_run_ends_in_the_state_of_an_uncached_one(state, kv, chunk, stop):
    prompt = [token * token % 11 for token in range(40)]
    world = World(4, 120, state, kv)
    world.serve(prompt[:stop])
    sequence = world.open(prompt)
    assert len(sequence.tokens) == stop
    while sequence.pending:
        world.run(sequence, prompt[:chunk])
        world.check()
    assert sequence.tokens == prompt


# class 11: depth and key are verified on restore; both witnesses


def header_is_of_other_depth(world, node):
    node.checkpoint.header = world.node(TEN[:4]).checkpoint.header


def slot_is_of_other_depth(world, node):
    world.pool.copy(world.node(TEN[:4]).checkpoint.slot, node.checkpoint.slot)


def slot_is_of_other_tokens(world, node):
    world.pool.reset(node.checkpoint.slot, A)
    states.advance(world.pool, node.checkpoint.slot, TEN[7::-1])


def slot_is_of_another_tenant(world, node):
    world.pool.reset(node.checkpoint.slot, B)
    states.advance(world.pool, node.checkpoint.slot, TEN[:8])


def slot_is_torn(world, node):
    world.pool.begin([node.checkpoint.slot])


def entries_are_swapped(world, node):
    other = world.node(TEN[:4])
    node.checkpoint, other.checkpoint = other.checkpoint, node.checkpoint


DAMAGES = [
    header_is_of_other_depth,
    slot_is_of_other_depth,
    slot_is_of_other_tokens,
    slot_is_of_another_tenant,
    slot_is_torn,
    entries_are_swapped,
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("path", ["copied", "taken-over"])
def test_state_that_is_not_of_its_tokens_is_never_resumed(damage, path):
    world = World(slots=4)
    world.serve(TEN[:8], stops=(4,))
    node = world.node(TEN[:8])
    damage(world, node)
    if path == "taken-over":
        # no slot is free, and nothing but the checkpoint itself could be evicted
        world.node(TEN[:4]).checkpoint.pins += 1
        leases = [world.cache.tiers.acquire(LeaseState.LIVE) for _ in range(2)]
    else:
        leases = []
    spoilt = damage is entries_are_swapped
    opened = world.cache.open(A, TEN)
    # the next shallower state is resumed, unless it is spoilt as well
    assert opened.hold.depth == (0 if spoilt else 4)
    assert world.cache.counters["checkpoints_refused"] == 1 + spoilt
    assert node.checkpoint is None
    assert node.locks == 0
    world.cache.release(opened.hold)
    opened.lease.release()
    for lease in leases:
        lease.release()
    assert world.slots.num_free == (2 if spoilt and path == "copied" else 1) + 2


# class 2: depth and key are verified on publish


def refuse_to_publish(world, sequence, tokens, rows, checkpoint):
    with pytest.raises(CheckpointMismatchError):
        world.cache.publish(sequence.hold, tokens, rows, checkpoint)


@pytest.mark.parametrize("resumed", [0, 4])
@pytest.mark.parametrize(
    "claim",
    [
        lambda tokens: tokens[:-1],
        lambda tokens: [*tokens, 9],
        lambda tokens: [*tokens[:-1], 9],
        lambda tokens: tokens[::-1],
        lambda tokens: tokens[: len(tokens) // 8 * 8],
    ],
    ids=["shallower", "deeper", "other-last", "reversed", "floored"],
)
def test_publishing_a_state_of_other_tokens_is_refused_and_changes_nothing(resumed, claim):
    world = World()
    if resumed:
        world.serve(TEN[:resumed])
    sequence = world.open([*TEN, 10, 11, 12])
    world.run(sequence)
    tokens = claim(sequence.tokens)
    spare = world.kv.allocate(1)
    rows = torch.cat([sequence.rows, spare])[: len(tokens)]
    before = list(world.rows()), world.states()
    checkpoint = world.tiers.donate(sequence.lease)
    refuse_to_publish(world, sequence, tokens, rows, checkpoint)
    assert (list(world.rows()), world.states()) == before
    sequence.lease = checkpoint.surrender()
    world.kv.free(spare)
    world.check()
    world.donate(sequence)
    world.check_empty()


@pytest.mark.parametrize(
    "claim",
    [
        lambda s: (s.tokens, s.rows[:-1]),
        lambda s: (s.tokens[:-1], s.rows),
        lambda s: (s.tokens[:3], s.rows[:3]),
        lambda s: ([], s.rows[:0]),
        lambda s: ([9, *s.tokens[1:]], s.rows),
        lambda s: ([*s.tokens[:3], 9, *s.tokens[4:]], s.rows),
        lambda s: (s.tokens, s.rows.flip(0)),
        lambda s: (s.tokens, s.rows.roll(1)),
        lambda s: (s.tokens, s.rows[[1, 0, *range(2, 10)]]),
    ],
    ids=[
        "row-missing",
        "token-missing",
        "below-the-hold",
        "nothing",
        "first-token-differs",
        "last-held-token-differs",
        "rows-reversed",
        "rows-shifted",
        "held-rows-swapped",
    ],
)
def test_publishing_rows_that_contradict_the_hold_is_refused_and_changes_nothing(claim):
    world = World()
    world.serve(TEN[:4])
    sequence = world.open(TEN)
    world.run(sequence)
    before = list(world.rows())
    refuse_to_publish(world, sequence, *claim(sequence), None)
    assert list(world.rows()) == before
    world.check()
    world.donate(sequence)
    world.check_empty()


# class 4: a state that was not written whole cannot be published


@pytest.mark.parametrize("layer", [spec.index for spec in states.MIXED.layers])
@pytest.mark.parametrize("path", ["copied", "moved", "torn-later"])
def test_state_with_a_layer_not_written_cannot_be_published(layer, path):
    world = World(state=states.MIXED)
    sequence = world.open(TEN)
    world.run(sequence, TEN[:4])
    world.checkpoint(sequence)
    fresh = world.cache.rows.allocate(1)
    rows = torch.cat([sequence.rows, fresh])
    checkpoint = world.tiers.donate(sequence.lease) if path == "torn-later" else None
    slot = sequence.lease.slot if checkpoint is None else checkpoint.slot
    with pytest.raises(CheckpointMismatchError, match=rf"\[{layer}\] did not write"):
        states.advance(world.pool, slot, [4], skip=[layer])
    if checkpoint is None:
        take = {"copied": lambda: world.tiers.snapshot(slot), "moved": lambda: world.tiers.donate(sequence.lease)}[path]
        before = world.tiers.balance("native")
        with pytest.raises(CheckpointMismatchError, match="not whole"):
            take()
        assert world.tiers.balance("native") == before
        sequence.lease.release()
    else:
        for depth in (4, 5):
            refuse_to_publish(world, sequence, TEN[:depth], rows[:depth], checkpoint)
        world.tiers.abandon(checkpoint)
    world.kv.free(fresh)
    world.cache.release(sequence.hold)
    world.running.clear()
    world.check()
    assert world.depths(TEN) == (4, 4)


# class 14: KV reported without its state


@pytest.mark.parametrize(("dropped", "resumed"), [((8,), 4), ((4,), 8), ((4, 8), 0), ((10,), 8)])
def test_rows_without_their_state_are_no_hit(dropped, resumed):
    world = World()
    world.serve(TEN, stops=(4, 8))
    for depth in dropped:
        world.cache._states.drop(world.node(TEN[:depth]))
    assert world.depths(TEN) == (resumed, 10)
    sequence = world.open(TEN)
    assert len(sequence.tokens) == resumed
    world.run(sequence)
    world.donate(sequence)
    world.check()


def test_rows_whose_states_are_all_evicted_stay_usable_below_a_deeper_state():
    world = World(slots=2)
    world.serve(TEN[:4])
    world.serve(TEN[:8])
    world.serve([*TEN])
    assert world.states() == [(A, tuple(TEN[:8])), (A, tuple(TEN))]
    rows_used = world.kv.num_rows - world.kv.num_free
    assert rows_used == 10, "the evicted state's rows are still the base of the deeper ones, once"
    assert world.depths([*TEN, 0]) == (10, 10)
    assert world.depths(TEN[:8]) == (0, 8)
    world.check()


# two tenants never share


@pytest.mark.parametrize("stops", [(), (4, 8)])
def test_tenants_never_share(stops):
    world = World(slots=8)
    world.serve(TEN, A, stops=stops)
    assert world.depths([*TEN, 0], B) == (0, 0)
    assert not world.cache.has_state(B, TEN, EXACT)
    sequence = world.open(TEN, B)
    assert sequence.tokens == []
    world.run(sequence)
    world.check()
    world.donate(sequence)
    world.check()
    assert not set(world.node(TEN, A).rows.tolist()) & set(world.node(TEN, B).rows.tolist())
    assert world.node(TEN, A).checkpoint.header.key != world.node(TEN, B).checkpoint.header.key


def test_state_of_one_tenant_cannot_be_published_for_another():
    world = World()
    ours, theirs = world.open(TEN, A), world.open(TEN, B)
    world.run(ours)
    world.run(theirs)
    checkpoint = world.tiers.donate(ours.lease)
    refuse_to_publish(world, theirs, TEN, theirs.rows, checkpoint)
    ours.lease = checkpoint.surrender()
    world.check()


def test_a_tenant_that_holds_nothing_leaves_nothing_behind():
    world = World()
    for tenant in (b"one", b"two", b"three"):
        opened = world.cache.open(tenant, TEN)
        world.cache.release(opened.hold)
        opened.lease.release()
        assert world.depths(TEN, tenant) == (0, 0)
    assert not world.cache.roots


# has_state answers for exact depths only


@pytest.mark.parametrize(("length", "present"), [(0, False), (3, False), (4, True), (5, False), (10, True)])
def test_state_is_present_at_exact_depths_only(length, present):
    world = World()
    world.serve(TEN, stops=(4,))
    assert world.cache.has_state(A, [*TEN, 10][:length], EXACT) is present
