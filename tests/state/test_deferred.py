"""A slot with a log stands for the state that the dense recurrence has: whatever is done to it, at every fill."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdover.arch.layout import StateLayout
from holdover.errors import CheckpointMismatchError, ConfigError
from holdover.ops.deferred.log import EntryDtypes
from holdover.state import EXACT, SlotPool
from tests.codec.logged import layer
from tests.state.twins import LAYOUT, Twins

CAPACITY = 3
FILLS = range(CAPACITY + 1)
every_fill = pytest.mark.parametrize("fill", FILLS)


def filled(fill: int) -> Twins:
    """Slot 1 at ``fill``, slot 2 in another phase."""
    twins = Twins(CAPACITY + 1)
    twins.fill(1, fill)
    twins.fill(2, (fill + 2) % (CAPACITY + 1))
    return twins


def same(before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, before, after))


# random histories


class Histories(RuleBasedStateMachine):
    """Steps of any slots, drafts kept and taken back, copies, folds, resets: always the dense twin's state."""

    twins: Twins

    @initialize(merge_interval=st.integers(1, 6))
    def start(self, merge_interval: int) -> None:
        self.twins = Twins(merge_interval)

    def whole(self, wanted: set[int]) -> list[int]:
        return sorted(slot for slot in wanted if self.twins.dense.is_whole(slot))

    @rule(slots=st.sets(st.integers(1, 3), min_size=1), count=st.integers(1, 3))
    def step(self, slots: set[int], count: int) -> None:
        if whole := self.whole(slots):
            for _ in range(count):
                self.twins.step(whole)

    @precondition(lambda self: self.twins.log.capacity)
    @rule(slots=st.sets(st.integers(1, 3), min_size=1), data=st.data())
    def verify(self, slots: set[int], data: st.DataObject) -> None:
        if whole := self.whole(slots):
            tokens = data.draw(st.integers(1, self.twins.log.capacity))
            kept = [data.draw(st.integers(1, tokens)) for _ in whole]
            self.twins.close(self.twins.open(whole, tokens), kept)

    @rule(source=st.integers(1, 3), other=st.integers(1, 3))
    def copy(self, source: int, other: int) -> None:
        if source != other and self.whole({source}):
            for pool in (self.twins.logged, self.twins.dense):
                pool.copy(source, other)

    @rule(slots=st.sets(st.integers(1, 3)))
    def settle(self, slots: set[int]) -> None:
        self.twins.logged.settle(whole := self.whole(slots))
        assert not any(map(self.twins.logged.pending, whole))

    @rule(slot=st.integers(1, 3), how=st.sampled_from(["reset", "poison", "forget"]))
    def give_up(self, slot: int, how: str) -> None:
        for pool in (self.twins.logged, self.twins.dense):
            pool.poison(slot) if how == "poison" else pool.forget(slot)
            if how == "reset":
                pool.reset(slot, b"other")

    @invariant()
    def same_state(self) -> None:
        if hasattr(self, "twins"):
            self.twins.check()


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=10, stateful_step_count=12)


# every fill (class 16)


@every_fill
def test_a_copy_is_the_whole_state_and_leaves_its_source_as_it_is(fill: int) -> None:
    twins = filled(fill)
    before = twins.bytes()
    twins.logged.copy(1, twins.spare)
    assert (twins.logged.pending(1), twins.logged.pending(twins.spare)) == (fill, 0)
    assert same(before, twins.bytes())
    twins.check()
    # neither follows the other
    twins.logged.copy(1, 3)
    twins.dense.copy(1, 3)
    for slots in ([1], [3], [3, 1], [1]):
        twins.step(slots)
        twins.check()


@every_fill
def test_a_fold_changes_where_the_state_lies_and_nothing_else(fill: int) -> None:
    twins = filled(fill)
    header, other = twins.logged.header(1), [x[2].clone() for x in twins.log.tensors]
    if fill:
        with pytest.raises(CheckpointMismatchError, match=rf"slot 1 has {fill} tokens in its log"):
            twins.logged.tensors_of(1)
    twins.logged.settle([1])
    assert (twins.logged.pending(1), twins.logged.header(1)) == (0, header)
    assert all(torch.equal(x[2].nan_to_num(), y.nan_to_num()) for x, y in zip(twins.log.tensors, other, strict=True))
    twins.check()
    for _ in range(CAPACITY + 2):
        twins.step([1, 2])
        twins.check()


@every_fill
@pytest.mark.parametrize("tokens", range(1, CAPACITY + 1))
def test_drafts_that_are_taken_back_were_never_there(fill: int, tokens: int) -> None:
    for kept in range(1, tokens + 1):
        twins = filled(fill)
        twins.close(twins.open([2, 1], tokens), [1, kept])
        twins.check()
        for _ in range(3):
            twins.step([1, 2])
            twins.check()


@every_fill
def test_between_drafts_and_their_end_nothing_can_be_read(fill: int) -> None:
    twins = filled(fill)
    step, pool = twins.open([1], 2), twins.logged
    before = twins.bytes()
    refused = {
        "header": lambda: pool.header(1),
        "depth": lambda: pool.depth(1),
        "chain": lambda: pool.chain(1),
        "copy": lambda: pool.copy(1, 3),
        "settle": lambda: pool.settle([1]),
        "settle with another": lambda: pool.settle([2, 1]),
        "begin": lambda: pool.begin([1]),
        "relabel": lambda: pool.relabel(1, EXACT),
        "base": lambda: pool.tensors_of(1),
    }
    for name, use in refused.items():
        with pytest.raises(CheckpointMismatchError):
            use()
        assert same(before, twins.bytes()), name
    assert (pool.is_whole(1), pool.is_whole(3)) == (False, True)
    twins.close(step, [1])
    twins.check()


def test_what_cannot_be_taken_back() -> None:
    twins = filled(2)
    before = twins.bytes()
    with pytest.raises(CheckpointMismatchError, match=r"slots \[1\] are not in mid-step"):
        twins.logged.rollback([1], [1])
    assert same(before, twins.bytes())
    step = twins.open([1], 1)
    before = twins.bytes()
    with pytest.raises(CheckpointMismatchError, match=r"slots \[2\] are not in mid-step"):
        twins.logged.rollback([1, 2], [1, 1])
    assert same(before, twins.bytes())
    for count in (-1, 4):
        with pytest.raises(ValueError, match="cannot be taken back: the log of slot 1 has 3"):
            twins.logged.rollback([1], [count])
        assert same(before, twins.bytes())
    twins.close(step, [1])
    twins.check_slot(1)
    plain = SlotPool(LAYOUT, 1)
    plain.reset(1, b"")
    plain.begin([1])
    with pytest.raises(CheckpointMismatchError, match="without logs"):
        plain.rollback([1], [0])


# failures


@pytest.mark.parametrize("at", range(2 * len(LAYOUT.layers) + 1))
def test_a_fold_that_fails_half_way_leaves_nobodys_state(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Half of the layers folded and the log still there: those entries would count twice."""
    twins, calls = filled(2), iter(range(100))

    def failing(function):
        def wrapped(*args):
            if next(calls) == at:
                raise KeyboardInterrupt
            return function(*args)

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(twins.log.recurrence, "fold", failing(twins.log.recurrence.fold))
        patch.setattr(twins.log.convolution, "settle", failing(twins.log.convolution.settle))
        patch.setattr(twins.log, "emptied", failing(twins.log.emptied))
        with pytest.raises(KeyboardInterrupt):
            twins.logged.settle([1])
    assert not twins.logged.is_whole(1)
    twins.check_slot(2)
    for pool in (twins.logged, twins.dense):
        pool.reset(1, b"model")
    for _ in range(3):
        twins.check()
        twins.step([1, 2])


@every_fill
@pytest.mark.parametrize("layers", [{0, 1}, set()])
def test_a_step_that_left_a_layer_out_can_only_be_reset(fill: int, layers: set[int]) -> None:
    twins = filled(fill)
    slots, _, opened, _, ids = twins.open([1], 2)
    with pytest.raises(CheckpointMismatchError, match="did not write"):
        twins.logged.commit(slots, opened, ids, layers)
    for use in (lambda: twins.logged.copy(1, 3), lambda: twins.logged.rollback([1], [1])):
        with pytest.raises(CheckpointMismatchError):
            use()
    for pool in (twins.logged, twins.dense):
        pool.reset(1, b"model")
    twins.check()


@every_fill
def test_a_slot_that_is_given_up_has_no_log(fill: int) -> None:
    twins = filled(fill)
    twins.logged.poison(1)
    assert twins.log._mirror[1] == (0, 0)
    assert all(x[:, 1].isnan().all() for x in twins.logged._tensors)
    # stacks of layers lie one behind the other
    logs = [twins.log.log(spec.index) for spec in LAYOUT.layers]
    for log in logs:
        assert all(x[1].isnan().all() for x in (log.keys, log.values, log.decays, log.scales) if x is not None)
    twins.dense.poison(1)
    twins.check()
    for pool in (twins.logged, twins.dense):
        pool.reset(1, b"model")
    for _ in range(CAPACITY + 2):
        twins.step([1, 2])
        twins.check()


# accounting (class 18) and refusals


@pytest.mark.parametrize("merge_interval", [1, 2, 8, 64])
@pytest.mark.parametrize("conv", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["gdn", "kda", "mamba2", "rwkv6"])
def test_bytes_estimated_are_bytes_allocated(family: str, conv: str, merge_interval: int) -> None:
    layout = StateLayout((layer(0, family), layer(2, family, width=2), layer(3, family)), conv_dtype=conv)
    for slots in (1, 5):
        pool = SlotPool(layout, slots, merge_interval=merge_interval)
        log = pool.deferred
        assert log is not None
        tensors = [*pool._tensors, *log.tensors, *log.cursor, *log.empty_cursor]
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
        allocated = sum(size for address, size in storages.items() if address)
        assert SlotPool.bytes_for(layout, slots, merge_interval) == pool.nbytes == allocated


def test_entries_have_the_dtypes_that_they_are_given() -> None:
    layout = StateLayout((layer(0, "gdn"), layer(1, "mamba2")), conv_dtype="float32")
    entries = EntryDtypes(torch.bfloat16, torch.float16)
    log = SlotPool(layout, 2, merge_interval=4, entries=entries).deferred
    assert log is not None
    assert {(log.log(i).keys.dtype, log.log(i).values.dtype) for i in (0, 1)} == {entries}
    assert {log.log(i).decays.dtype for i in (0, 1)} == {torch.float32}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temporal_dtype": "float64"}, "fp32 state, and this one is float64"),
        ({"temporal_dtype": "bfloat16"}, "fp32 state, and this one is bfloat16"),
        ({"layers": (replace(layer(0, "gdn"), d_k=24),)}, "d_k is 24, want a power of two"),
    ],
)
def test_states_that_cannot_have_a_log(change: dict, message: str) -> None:
    layout = replace(LAYOUT, **change)
    for refused in (lambda: SlotPool(layout, 1, merge_interval=4), lambda: SlotPool.bytes_for(layout, 1, 4)):
        with pytest.raises(ConfigError, match=message):
            refused()
    assert SlotPool(layout, 1).nbytes == SlotPool.bytes_for(layout, 1)


@pytest.mark.parametrize("merge_interval", [0, 65])
def test_merge_intervals_out_of_range(merge_interval: int) -> None:
    with pytest.raises(ConfigError, match=f"merge interval is {merge_interval}, want 1 to 64"):
        SlotPool(LAYOUT, 1, merge_interval=merge_interval)
