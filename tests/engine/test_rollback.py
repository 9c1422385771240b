"""Drafts at the runner: what is taken back was never there, and nothing is read before it is known (class 20)."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from holdover.engine.decode import EagerDecoder
from holdover.engine.runner import Runner, Verification
from holdover.engine.step import Span
from holdover.errors import CheckpointMismatchError
from holdover.state import SlotPool
from holdover.store import KVPool, LeaseState, SlotAllocator, StateTiers
from tests.codec.logged import snapshot
from tests.engine.harness import RTOL, host_of, prompt_of, reference
from tests.engine.small import SMALL
from tests.helpers import assert_close

TOKENS = prompt_of(40)
PREFIX = 6
M, DRAFTED = 5, 3
# slots of the common prefix, of what is verified, of what is compared with
FIRST, LIVE, OTHER, SPARE = 1, 2, 3, 4


class World:
    """The prefix in a slot, copies of which are run on; KV rows above it are NaN until a token writes them."""

    def __init__(self, name: str, merge_interval: int | None = M) -> None:
        self.name, layout = name, host_of(name).layout
        self.slots = SlotPool(layout.state, 4, merge_interval=merge_interval)
        self.tiers = StateTiers(SlotAllocator(self.slots, poison=True))
        self.leases = [self.tiers.acquire(LeaseState.LIVE) for _ in range(4)]
        self.kv = KVPool(layout.kv, 3 * len(TOKENS), poison=True)
        decoder = None if merge_interval is None else EagerDecoder(host_of(name), self.slots, self.kv)
        self.runner = Runner(host_of(name), self.slots, self.kv, decoder)
        prefix = self.kv.allocate(PREFIX)
        self.rows = {slot: torch.cat([prefix, self.kv.allocate(len(TOKENS) - PREFIX)]) for slot in (FIRST, LIVE, OTHER)}
        self.slots.reset(FIRST, b"")
        self.run(FIRST, PREFIX)

    def span(self, slot: int, tokens: tuple[int, ...]) -> Span:
        start = self.slots.depth(slot)
        return Span(slot, tokens, start, self.rows[slot][: start + len(tokens)])

    def run(self, slot: int, count: int) -> torch.Tensor:
        """The next tokens; log probabilities after the last one."""
        start = self.slots.depth(slot)
        logits = self.runner.run([self.span(slot, TOKENS[start : start + count])]).logits
        return logits[0, -1].log_softmax(-1)

    def fork(self, slot: int, fill: int) -> None:
        """A copy of the prefix in ``slot`` with ``fill`` tokens in its log, one of them at least in its base."""
        self.slots.copy(FIRST, slot)
        for layer in self.kv.layout.layers:
            for plane in self.kv.planes(layer.index):
                plane[self.rows[slot][PREFIX:]] = float("nan")
        self.run(slot, 1)
        if fill:
            start = self.slots.depth(slot)
            self.runner.verify([self.span(slot, TOKENS[start : start + fill])]).accept([fill])
        assert self.slots.pending(slot) == fill

    def verify(self, *kept: int, slots: tuple[int, ...] = (LIVE,)) -> Verification:
        """So many right tokens of each slot, and wrong ones behind them."""
        spans = []
        for slot, right in zip(slots, kept, strict=True):
            start = self.slots.depth(slot)
            wrong = tuple((t + 1) % len(TOKENS) for t in TOKENS[start + right : start + DRAFTED])
            spans.append(self.span(slot, TOKENS[start : start + right] + wrong))
        return self.runner.verify(spans)

    def assert_state(self, slot: int, depth: int) -> None:
        """Fail unless a slot's state is that of a run that never saw a draft."""
        assert self.slots.depth(slot) == depth
        plain = World.plain(self.name, depth)
        assert self.slots.header(slot).key == plain.slots.header(FIRST).key
        self.slots.copy(slot, SPARE)
        for mine, wanted in zip(self.slots.tensors_of(SPARE), plain.slots.tensors_of(FIRST), strict=True):
            assert_close("state", mine, wanted, RTOL)

    def assert_goes_on(self, slot: int, count: int = 3) -> None:
        """Fail unless the next tokens are decoded as if there never had been a draft."""
        wanted = reference(self.name, TOKENS)
        for _ in range(count):
            depth = self.slots.depth(slot)
            assert_close("logprobs", self.run(slot, 1), wanted[depth], RTOL)

    @staticmethod
    @cache
    def plain(name: str, depth: int) -> World:
        """One run of the first ``depth`` tokens, without a log."""
        world = World(name, merge_interval=None)
        world.run(FIRST, depth - PREFIX)
        return world


every_family = pytest.mark.parametrize("name", SMALL)


@every_family
def test_every_fill_and_every_count(name: str) -> None:
    """Drafts that fit behind the log, and drafts that it is folded for."""
    world = World(name)
    wanted = reference(name, TOKENS)
    for fill in range(M):
        for kept in range(1, DRAFTED + 1):
            world.fork(LIVE, fill)
            depth = world.slots.depth(LIVE)
            verification = world.verify(kept)
            logprobs = verification.logits[0].log_softmax(-1)
            assert_close("logprobs", logprobs[:kept], wanted[depth : depth + kept], RTOL)
            verification.accept([kept])
            assert world.slots.pending(LIVE) == (kept if fill + DRAFTED >= M else fill + kept)
            world.assert_state(LIVE, depth + kept)
            world.assert_goes_on(LIVE)


@every_family
@pytest.mark.parametrize(("fills", "kept"), [((0, 4), (3, 1)), ((2, 1), (1, 2)), ((3, 3), (2, 3))])
def test_slots_in_different_phases(name: str, fills: tuple[int, int], kept: tuple[int, int]) -> None:
    world = World(name)
    for slot, fill in zip((LIVE, OTHER), fills, strict=True):
        world.fork(slot, fill)
    depths = [world.slots.depth(slot) for slot in (LIVE, OTHER)]
    world.verify(*kept, slots=(LIVE, OTHER)).accept(kept)
    for slot, depth, count in zip((LIVE, OTHER), depths, kept, strict=True):
        world.assert_state(slot, depth + count)
        world.assert_goes_on(slot)
    # drafts once more, on what drafts have left
    depth = world.slots.depth(OTHER)
    world.verify(1, slots=(OTHER,)).accept([1])
    world.assert_state(OTHER, depth + 1)


@every_family
@pytest.mark.parametrize("fill", [0, 1, 4])
def test_between_verify_and_accept_nothing_is_published(name: str, fill: int) -> None:
    world = World(name)
    world.fork(LIVE, fill)
    depth, slots = world.slots.depth(LIVE), world.slots
    verification = world.verify(2)
    before = snapshot(slots)

    def settle_and_read() -> None:
        slots.settle([LIVE])
        slots.tensors_of(LIVE)

    refused = [
        lambda: slots.header(LIVE),
        lambda: slots.copy(LIVE, SPARE),
        settle_and_read,
        lambda: world.tiers.snapshot(LIVE),
        lambda: world.tiers.donate(world.leases[LIVE - 1]),
        lambda: world.runner.run([Span(LIVE, [1], depth, world.rows[LIVE][: depth + 1])]),
        lambda: world.runner.verify([Span(LIVE, [1], depth, world.rows[LIVE][: depth + 1])]),
    ]
    for use in refused:
        with pytest.raises(CheckpointMismatchError):
            use()
        assert all(map(torch.equal, before, snapshot(slots)))
    assert world.leases[LIVE - 1].is_held
    for counts in ([0], [-1], [DRAFTED + 1], [], [1, 1]):
        with pytest.raises(ValueError, match=r"tokens cannot be kept|shorter|longer"):
            verification.accept(counts)
        assert all(map(torch.equal, before, snapshot(slots)))
    verification.accept([2])
    world.assert_state(LIVE, depth + 2)
    # what is committed stays
    before = snapshot(slots)
    for again in (lambda: verification.accept([2]), lambda: verification.accept([1])):
        with pytest.raises(CheckpointMismatchError, match="not in mid-step"):
            again()
    with pytest.raises(CheckpointMismatchError, match="not in mid-step"):
        slots.rollback([LIVE], [1])
    world.slots.forget(SPARE)
    assert slots.depth(LIVE) == depth + 2
    checkpoint = world.tiers.donate(world.leases[LIVE - 1])
    assert (checkpoint.header.depth, slots.pending(LIVE)) == (depth + 2, 0)
    world.assert_state(LIVE, depth + 2)


@every_family
def test_drafts_that_were_never_decided_on_are_nobodys_state(name: str) -> None:
    """A step that ends between verify and accept leaves a slot that can only be given up."""
    world = World(name)
    world.fork(LIVE, 3)
    verification = world.verify(2)
    world.fork(LIVE, 2)
    with pytest.raises(CheckpointMismatchError):
        verification.accept([2])
    world.assert_state(LIVE, PREFIX + 3)
    world.assert_goes_on(LIVE)


def test_what_cannot_be_verified() -> None:
    world = World("small-qwen3_5")
    world.fork(LIVE, 2)
    before, depth = snapshot(world.slots), world.slots.depth(LIVE)
    with pytest.raises(ValueError, match=f"{M} tokens are to be verified, and a log holds {M - 1}"):
        world.runner.verify([world.span(LIVE, TOKENS[:M])])
    with pytest.raises(ValueError, match="equally many"):
        world.runner.verify([world.span(LIVE, TOKENS[:2]), world.span(FIRST, TOKENS[:1])])
    with pytest.raises(CheckpointMismatchError, match=f"depth {depth}, not"):
        world.runner.verify([Span(LIVE, TOKENS[:2], depth - 1, world.rows[LIVE][: depth + 1])])
    assert all(map(torch.equal, before, snapshot(world.slots)))
    plain = World.plain("small-qwen3_5", PREFIX + 1)
    with pytest.raises(ValueError, match="need deferred decode"):
        plain.runner.verify([plain.span(FIRST, TOKENS[:2])])
    dense = World("small-qwen3_5", merge_interval=1)
    with pytest.raises(ValueError, match="1 tokens are to be verified, and a log holds 0"):
        dense.runner.verify([dense.span(FIRST, TOKENS[:1])])
