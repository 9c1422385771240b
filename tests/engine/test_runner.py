"""The one primitive: replay on a scratch slot, taps, early stops, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from holdover.engine.runner import Runner, StopForward
from holdover.engine.step import KVMode, Span, StateMode
from holdover.errors import CheckpointMismatchError
from holdover.state import SlotPool
from holdover.store import KVPool
from tests.arch.table import ARCHITECTURES
from tests.engine.harness import RTOL, TOY, host_of, prompt_of, reference
from tests.helpers import assert_close

TOKENS = prompt_of(20, vocab=8)
LIVE, SCRATCH = 1, 2


class World:
    """A runner over pools of its own, with the first tokens computed on the live slot."""

    def __init__(self, name: str, computed: int = len(TOKENS)) -> None:
        layout = host_of(name).layout
        self.slots = SlotPool(layout.state, 3)
        self.kv = KVPool(layout.kv, 40, poison=True)
        self.runner = Runner(host_of(name), self.slots, self.kv)
        # in no order
        self.rows = self.kv.allocate(len(TOKENS)).flip(0)
        self.slots.reset(LIVE, b"")
        for slot in (SCRATCH, 3):
            self.slots.poison(slot)
        if computed:
            self.runner.run([self.span(0, computed)])

    def span(self, start: int, end: int, slot: int = LIVE) -> Span:
        return Span(slot, TOKENS[start:end], start, self.rows[:end])

    def bytes(self) -> list[torch.Tensor]:
        """Live slot, sink and all rows, as integers: poison compares equal."""
        planes = [plane for layer in self.kv.layout.layers for plane in self.kv.planes(layer.index)]
        tensors = [*self.slots.tensors_of(LIVE), *self.slots.tensors_of(0), *planes]
        return [tensor.contiguous().view(torch.int32).clone() for tensor in tensors]


def assert_same(before: list[torch.Tensor], after: list[torch.Tensor]) -> None:
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


every_model = pytest.mark.parametrize("name", [TOY, *ARCHITECTURES])


@every_model
@pytest.mark.parametrize("window", [1, 3, 6, 20])
def test_replay_on_a_scratch_slot_changes_nothing_else(name: str, window: int) -> None:
    world = World(name)
    before, header = world.bytes(), world.slots.header(LIVE)
    span = world.span(len(TOKENS) - window, len(TOKENS), SCRATCH)
    out = world.runner.run([span], kv=KVMode.DISCARD, state=StateMode.SCRATCH).logits
    assert_same(before, world.bytes())
    assert world.slots.header(LIVE) == header
    # from nothing: it has seen the window only, and can be taken for no sequence's state
    assert world.slots.depth(SCRATCH) == window
    assert world.slots.header(SCRATCH).key != header.key
    assert all(tensor.isfinite().all() for tensor in world.slots.tensors_of(SCRATCH))
    if window == len(TOKENS):
        assert_close("logits", out[0].log_softmax(-1), reference(name, TOKENS)[-1:], RTOL)
        for mine, theirs in zip(world.slots.tensors_of(SCRATCH), world.slots.tensors_of(LIVE), strict=True):
            assert_close("state", mine, theirs, RTOL)


@every_model
def test_logits_of_the_last_positions_or_all(name: str) -> None:
    wanted = reference(name, TOKENS)
    for count in (1, 2, None):
        world = World(name, computed=8)
        logits = world.runner.run([world.span(8, 20)], logits=count).logits
        assert logits.dtype == torch.float32
        assert_close("logits", logits[0].log_softmax(-1), wanted[-(count or 12) :], RTOL)


@every_model
def test_taps(name: str) -> None:
    world = World(name, computed=8)
    layout, seen = world.runner.host.layout, {}
    world.runner.run([world.span(8, 12)], tap=lambda layer, key, x: seen.__setitem__((layer, key), x.clone()))
    for layer in layout.kv.layers:
        assert seen[layer.index, "keys"].shape == (1, layer.heads, 4, layer.d_k)
        assert seen[layer.index, "values"].shape == (1, layer.heads, 4, layer.d_v)
        # what was tapped is what was stored
        stored = world.kv.planes(layer.index)[0][world.rows[8:12]]
        assert torch.equal(stored, seen[layer.index, "keys"][0].transpose(0, 1))
        if name != TOY:
            assert seen[layer.index, "queries"].shape[:3] == (1, 4, layer.query_heads)
    if name != TOY:
        for layer in layout.state.layers:
            decay = seen[layer.index, "log_decay"]
            assert decay.shape[:3] == (1, 4, layer.heads)
            assert (decay <= 0).all()


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("last", [0, 2, 3, 5])
def test_a_forward_that_stops_early(name: str, last: int) -> None:
    world = World(name)
    before, seen = world.bytes(), set()
    result = world.runner.run(
        [world.span(14, 20, SCRATCH)],
        kv=KVMode.DISCARD,
        state=StateMode.SCRATCH,
        tap=lambda layer, *_: seen.add(layer),
        stop_after_layer=last,
    )
    assert result.logits is None
    assert seen == set(range(last + 1))
    assert_same(before, world.bytes())
    # torn: it is nobody's state
    assert not world.slots.is_whole(SCRATCH)
    world.slots.reset(SCRATCH, b"")
    assert world.slots.depth(SCRATCH) == 0


def test_a_tap_may_end_the_forward() -> None:
    world = World(TOY)

    def stop(*_) -> None:
        raise StopForward

    result = world.runner.run([world.span(14, 20, SCRATCH)], kv=KVMode.DISCARD, state=StateMode.SCRATCH, tap=stop)
    assert result.logits is None
    assert not world.slots.is_whole(SCRATCH)


@pytest.mark.parametrize("start", [0, 7, 9, 12])
def test_a_slot_at_another_depth_is_refused(start: int) -> None:
    world = World(TOY, computed=8)
    before, forwards = world.bytes(), world.runner.host.forwards
    with pytest.raises(CheckpointMismatchError, match=f"slot 1 is at depth 8, not {start}"):
        world.runner.run([world.span(start, start + 2)])
    assert_same(before, world.bytes())
    assert (world.runner.host.forwards, world.slots.depth(LIVE)) == (forwards, 8)


def test_a_slot_of_nobody_is_refused() -> None:
    world = World(TOY, computed=8)
    with pytest.raises(CheckpointMismatchError, match="slot 3"):
        world.runner.run([world.span(8, 9, slot=3)])


def test_a_slot_twice_in_one_forward_is_refused() -> None:
    world = World(TOY, computed=8)
    with pytest.raises(CheckpointMismatchError):
        world.runner.run([world.span(8, 9), world.span(8, 9)])
    assert world.slots.depth(LIVE) == 8


@pytest.mark.parametrize("spans", [[], [(8, 8)], [(8, 10), (8, 11)]])
def test_spans_of_unequal_or_no_length_are_refused(spans: list[tuple[int, int]]) -> None:
    world = World(TOY, computed=8)
    with pytest.raises(ValueError, match="equally many tokens"):
        world.runner.run([world.span(*span) for span in spans])
    assert world.slots.depth(LIVE) == 8


def test_rows_must_be_one_a_token() -> None:
    world = World(TOY, computed=8)
    with pytest.raises(ValueError, match="has 9 rows"):
        world.runner.run([replace(world.span(8, 10), rows=world.rows[:9])])


def test_a_live_slot_is_not_left_torn() -> None:
    world = World(TOY, computed=8)
    with pytest.raises(ValueError, match="scratch"):
        world.runner.run([world.span(8, 9)], stop_after_layer=0)
    assert world.slots.depth(LIVE) == 8


def test_an_error_in_a_forward_tears_its_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(TOY, computed=8)
    with monkeypatch.context() as patch:
        patch.setattr(KVPool, "write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            world.runner.run([world.span(8, 9)])
    assert not world.slots.is_whole(LIVE)
    with pytest.raises(CheckpointMismatchError):
        world.runner.run([world.span(8, 9)])
