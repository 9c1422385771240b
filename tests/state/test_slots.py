from dataclasses import replace

import pytest
import torch

from holdover.errors import CheckpointMismatchError
from holdover.state import EXACT, SINK, Lineage, SlotPool
from holdover.state.key import chain_of
from tests.state.build import LAYOUTS, MIXED, UNIFORM, advance, assert_state_of, bytes_of, same_bytes

every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def painted(layout=UNIFORM, slots=3):
    """A pool in which every slot holds its own tokens: slot s has seen ``[s] * (s + 1)``."""
    pool = SlotPool(layout, slots)
    for slot in range(1, slots + 1):
        pool.reset(slot, b"model")
        advance(pool, slot, [slot] * (slot + 1))
    return pool


def others_of(pool, slot):
    return {s: bytes_of(pool, s) for s in range(pool.num_slots + 1) if s != slot}


def unchanged(pool, before):
    return all(same_bytes(bytes_of(pool, s), tensors) for s, tensors in before.items())


# accounting (class 18)


@every_layout
@pytest.mark.parametrize("temporal", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("conv", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("slots", [1, 5])
def test_bytes_estimated_are_bytes_allocated(layout, temporal, conv, slots):
    layout = replace(layout, temporal_dtype=temporal, conv_dtype=conv)
    pool = SlotPool(layout, slots)
    layers = [layer.index for layer in layout.layers]
    seen = sum(view(i).numel() * view(i).element_size() for i in layers for view in (pool.temporal, pool.conv))
    assert SlotPool.bytes_for(layout, slots) == pool.nbytes == seen
    assert {pool.temporal(i).dtype for i in layers} == {getattr(torch, temporal)}
    assert {pool.conv(i).dtype for i in layers} == {getattr(torch, conv)}


@every_layout
def test_every_layer_has_its_own_memory_and_shape(layout):
    pool = SlotPool(layout, 2)
    for value, spec in enumerate(layout.layers, start=1):
        pool.temporal(spec.index)[1].fill_(value)
        pool.conv(spec.index)[1].fill_(-value)
    for value, spec in enumerate(layout.layers, start=1):
        assert pool.temporal(spec.index)[1].eq(value).all()
        assert pool.conv(spec.index)[1].eq(-value).all()
        assert pool.temporal(spec.index).shape == (3, spec.heads, spec.d_k, spec.d_v)
        assert pool.conv(spec.index).shape == (3, spec.conv_width - 1, spec.conv_channels)
    assert not any(t.any() for t in pool.tensors_of(2))


# depth and key travel with the bytes (class 11)


@every_layout
@pytest.mark.parametrize("chunks", [[[1]], [[1, 2, 3]], [[1], [2], [3, 4]], [[], [5]]])
def test_state_and_record_advance_together(layout, chunks):
    pool = SlotPool(layout, 1)
    pool.reset(1, b"model")
    for chunk in chunks:
        advance(pool, 1, chunk)
    tokens = [token for chunk in chunks for token in chunk]
    assert_state_of(pool, 1, tokens)
    header = pool.header(1)
    assert (header.depth, header.key, header.layout) == (len(tokens), chain_of(b"model", tokens).key(), layout.digest)
    assert header.lineage == EXACT


@every_layout
def test_reset_makes_the_empty_state_of_the_namespace_and_touches_no_other_slot(layout):
    pool = painted(layout)
    before = others_of(pool, 2)
    pool.reset(2, b"other")
    assert_state_of(pool, 2, [])
    assert pool.header(2).key == chain_of(b"other", []).key()
    assert unchanged(pool, before)


@every_layout
def test_copy_takes_bytes_and_record_and_touches_no_other_slot(layout):
    pool = painted(layout)
    before = others_of(pool, 3)
    header = pool.header(1)
    pool.copy(1, 3)
    assert_state_of(pool, 3, [1, 1])
    assert pool.header(3) == pool.header(1) == header
    assert unchanged(pool, before)


def test_lineage_travels_with_a_copy_and_ends_with_a_reset():
    pool = painted()
    pool._lineage[1] = lineage = Lineage("nr", 2)
    pool.copy(1, 2)
    assert pool.header(2).lineage == lineage
    advance(pool, 2, [5])
    assert pool.header(2).lineage == lineage
    pool.copy(3, 1)
    assert pool.header(1).lineage == EXACT
    pool.reset(2, b"model")
    assert pool.header(2).lineage == EXACT


def test_batched_step_advances_each_slot_by_its_own_tokens():
    pool = painted()
    chains = pool.begin([3, 1])
    pool.commit([3, 1], chains, [[7], [8, 9]], {0, 1, 3})
    assert pool.header(3).key == chain_of(b"model", [3, 3, 3, 3, 7]).key()
    assert pool.header(1).key == chain_of(b"model", [1, 1, 8, 9]).key()
    assert pool.header(2).key == chain_of(b"model", [2, 2, 2]).key()


# the snapshot does not follow the live slot (class 8)


@every_layout
def test_copy_is_independent_of_its_source_and_of_other_copies(layout):
    pool = painted(layout, 4)
    pool.copy(1, 2)
    pool.copy(1, 3)
    advance(pool, 1, [9])
    advance(pool, 3, [8, 8])
    assert_state_of(pool, 1, [1, 1, 9])
    assert_state_of(pool, 2, [1, 1])
    assert_state_of(pool, 3, [1, 1, 8, 8])


# torn slots (classes 4 and 11)


def never_written(pool):
    pool.forget(1)


def step_never_committed(pool):
    pool.begin([1])


def one_layer_not_written(pool):
    with pytest.raises(CheckpointMismatchError, match=r"layers \[1\] did not write"):
        advance(pool, 1, [5], skip=[1])


def no_layer_written(pool):
    with pytest.raises(CheckpointMismatchError, match=r"layers \[0, 1, 3\] did not write"):
        advance(pool, 1, [5], skip=[0, 1, 3])


def poisoned(pool):
    pool.poison(1)


TEARS = [never_written, step_never_committed, one_layer_not_written, no_layer_written, poisoned]
every_tear = pytest.mark.parametrize("tear", TEARS)


@every_tear
@pytest.mark.parametrize(
    "use",
    [
        lambda pool: pool.header(1),
        lambda pool: pool.depth(1),
        lambda pool: pool.copy(1, 2),
        lambda pool: pool.begin([1]),
        lambda pool: pool.begin([2, 1]),
    ],
    ids=["header", "depth", "copy", "begin", "begin-batch"],
)
def test_torn_slot_cannot_be_used_and_the_attempt_changes_nothing(tear, use):
    pool = painted()
    tear(pool)
    before = others_of(pool, 1)
    assert not pool.is_whole(1)
    with pytest.raises(CheckpointMismatchError, match="slot 1 is not whole"):
        use(pool)
    assert unchanged(pool, before)
    assert_state_of(pool, 2, [2, 2, 2])


@every_tear
@pytest.mark.parametrize("heal", ["reset", "copy"])
def test_torn_slot_is_whole_again_after_reset_or_copy(tear, heal):
    pool = painted()
    tear(pool)
    if heal == "reset":
        pool.reset(1, b"model")
        assert_state_of(pool, 1, [])
    else:
        pool.copy(2, 1)
        assert_state_of(pool, 1, [2, 2, 2])


@pytest.mark.parametrize("fails_at", range(4))
def test_copy_that_fails_half_way_leaves_the_target_torn_and_the_source_whole(monkeypatch, fails_at):
    pool = painted(MIXED)
    calls = iter(range(100))
    original = torch.Tensor.copy_

    def copy_(self, source, *args):
        if next(calls) == fails_at:
            raise KeyboardInterrupt
        return original(self, source, *args)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "copy_", copy_)
        with pytest.raises(KeyboardInterrupt):
            pool.copy(1, 2)
    assert not pool.is_whole(2)
    assert_state_of(pool, 1, [1, 1])


def test_reset_that_fails_leaves_the_slot_torn(monkeypatch):
    pool = painted()
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "zero_", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pool.reset(1, b"model")
    assert not pool.is_whole(1)


def test_sink_is_no_state():
    with pytest.raises(CheckpointMismatchError, match="slot 0 is not whole"):
        painted().header(SINK)


# a step belongs to the slots that it was opened on


def test_step_on_a_slot_named_twice_is_refused_and_opens_nothing():
    pool = painted()
    with pytest.raises(CheckpointMismatchError, match="once"):
        pool.begin([1, 2, 1])
    assert pool.is_whole(1)
    assert pool.is_whole(2)


def swapped(pool, chains):
    pool.commit([2, 1], chains, [[5], [5]], {0, 1, 3})


def reset_meanwhile(pool, chains):
    pool.reset(1, b"model")
    pool.commit([1, 2], chains, [[5], [5]], {0, 1, 3})


def overwritten_meanwhile(pool, chains):
    pool.copy(3, 1)
    pool.commit([1, 2], chains, [[5], [5]], {0, 1, 3})


def freed_meanwhile(pool, chains):
    pool.forget(1)
    pool.commit([1, 2], chains, [[5], [5]], {0, 1, 3})


def reopened_meanwhile(pool, chains):
    pool.reset(1, b"model")
    pool.begin([1])
    pool.commit([1, 2], chains, [[5], [5]], {0, 1, 3})


def too_few_tokens(pool, chains):
    pool.commit([1, 2], chains, [[5]], {0, 1, 3})


def too_few_chains(pool, chains):
    pool.commit([1, 2], chains[:1], [[5], [5]], {0, 1, 3})


@pytest.mark.parametrize(
    "commit",
    [
        swapped,
        reset_meanwhile,
        overwritten_meanwhile,
        freed_meanwhile,
        reopened_meanwhile,
        too_few_tokens,
        too_few_chains,
    ],
)
def test_step_that_does_not_match_its_slots_never_commits(commit):
    pool = painted()
    chains = pool.begin([1, 2])
    with pytest.raises(CheckpointMismatchError, match="not in the step"):
        commit(pool, chains)
    assert not pool.is_whole(2)
    assert pool.header(3).key == chain_of(b"model", [3, 3, 3, 3]).key()


@pytest.mark.parametrize("slots", [[1], [1, 2]])
def test_step_commits_once(slots):
    pool = painted()
    chains = pool.begin(slots)
    tokens = [[5]] * len(slots)
    pool.commit(slots, chains, tokens, {0, 1, 3})
    with pytest.raises(CheckpointMismatchError, match="not in the step"):
        pool.commit(slots, chains, tokens, {0, 1, 3})
    assert pool.header(1).key == chain_of(b"model", [1, 1, 5]).key()


def test_step_without_all_layers_cannot_be_committed_later():
    pool = painted()
    chains = pool.begin([1])
    for written in ({0, 1}, {0, 1, 3}):
        with pytest.raises(CheckpointMismatchError):
            pool.commit([1], chains, [[5]], written)
    assert not pool.is_whole(1)


@every_layout
def test_poison_reaches_every_element(layout):
    pool = painted(layout)
    before = others_of(pool, 2)
    pool.poison(2)
    assert all(t.isnan().all() for t in pool.tensors_of(2))
    assert unchanged(pool, before)
