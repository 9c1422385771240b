"""The decoder of static buffers without graphs, on a CPU: seats, padding and the cursor's mirror."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from holdover.arch.layout import RecurrentLayer, StateLayout
from holdover.engine.decode import EagerDecoder, GraphDecoder
from holdover.engine.decode.decoder import Decoder
from holdover.engine.decode.graphs import batch_sizes
from holdover.engine.decode.seating import Seating
from holdover.engine.rows import RowTable
from holdover.engine.runner import Runner
from holdover.engine.step import Seats, Span, Step
from holdover.ops.recurrence.gdn import torch as gdn
from holdover.state import SlotPool
from holdover.store import KVPool
from tests.engine import toy
from tests.helpers import assert_close

VOCAB, WIDTH, CONTEXT, INTERVAL = 32, 8, 64, 4
STATE = StateLayout(
    (RecurrentLayer(0, "gdn", 1, 1, WIDTH, WIDTH, "head", conv_channels=WIDTH, conv_width=3),), conv_dtype="float32"
)


class SmallHost:
    """One recurrent and one attention layer that sums what its rows hold, wherever it is told that they stand."""

    layout = replace(toy.LAYOUT, state=STATE, vocab_size=VOCAB)
    device = torch.device("cpu")
    head = None

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self.embedding, self.output = (torch.randn(VOCAB, WIDTH, generator=draw) for _ in range(2))
        self.taps = torch.randn(WIDTH, 3, generator=draw)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, step: Step, logits: int | None) -> torch.Tensor:
        x = step.convolve(0, self.embedding[tokens], self.taps, None, "silu").unsqueeze(2)
        gate = torch.full(x.shape[:3], 0.5)
        mixed = step.recur(0, gdn, {}, q=x, k=x, v=x, log_decay=-0.1 * gate, beta=gate)[:, :, 0]
        step.update(tokens.float()[:, None, :, None], positions.float()[:, None, :, None], 1)
        sums = torch.stack([self._sums(step, b, tokens.shape[1]) for b in range(len(tokens))])
        return (mixed + sums.sin().unsqueeze(-1)) @ self.output.mT

    def _sums(self, step: Step, b: int, count: int) -> torch.Tensor:
        if isinstance(step.rows, Seats):
            table, seats, lengths = step.rows
            rows = table[seats[b], : lengths[b]].long()
        else:
            rows = step.rows[b]
        if not len(rows):
            return torch.zeros(count)
        keys, values = (plane[rows, 0, 0] for plane in step.kv_pool.planes(1))
        assert torch.equal(values, torch.arange(len(rows)).float()), "rows of other positions"
        return (keys * (values + 1)).cumsum(0)[-count:]


class World:
    """A runner, and sequences with rows of their own."""

    def __init__(self, kind: str, *, dense_below: int = 0, batch: int = 6) -> None:
        host = SmallHost()
        self.slots = SlotPool(STATE, 12, merge_interval=INTERVAL)
        self.kv = KVPool(toy.LAYOUT.kv, 12 * CONTEXT, poison=True)
        self.decoder: Decoder = (
            EagerDecoder(host, self.slots, self.kv)
            if kind == "eager"
            else GraphDecoder(
                host,
                self.slots,
                self.kv,
                max_batch=batch,
                max_tokens=3,
                max_context=CONTEXT,
                dense_below=dense_below,
                use_graphs=False,
            )
        )
        self.runner = Runner(host, self.slots, self.kv, self.decoder)
        self.tokens: dict[int, list[int]] = {}
        self.rows: dict[int, RowTable] = {}

    def start(self, slot: int, tokens: list[int]) -> None:
        self.slots.reset(slot, b"model")
        self.rows[slot] = RowTable(self.kv.allocate(CONTEXT))
        self.tokens[slot] = []
        self.run([slot], [tokens])

    def run(self, slots: list[int], tokens: list[list[int]], kept: list[int] | None = None) -> torch.Tensor:
        spans = []
        for slot, ids in zip(slots, tokens, strict=True):
            start = len(self.tokens[slot])
            rows = self.rows[slot]
            spans.append(Span(slot, ids, start, rows))
        if kept is None:
            logits = self.runner.run(spans).logits
            kept = [len(ids) for ids in tokens]
        else:
            verification = self.runner.verify(spans)
            logits = verification.logits
            verification.accept(kept)
        for slot, ids, count in zip(slots, tokens, kept, strict=True):
            self.tokens[slot] += ids[:count]
        assert logits is not None
        log = self.slots.deferred
        assert log is not None
        assert log.cursor.length.tolist() == [log.length(slot) for slot in range(13)]
        return logits.clone()


@pytest.mark.parametrize("dense_below", [0, 3, 100])
def test_every_step_equals_plain_calls(dense_below: int) -> None:
    """Batches of every size and membership, drafts among them; more sequences than seats, and rows that move."""
    draw, worlds = random.Random(0), [World("eager"), World("graph", dense_below=dense_below)]
    for slot in range(1, 10):
        prompt = [draw.randrange(VOCAB) for _ in range(draw.randrange(2, 9))]
        for world in worlds:
            world.start(slot, prompt)
    for step in range(60):
        slots = draw.sample(range(1, 10), draw.randrange(1, 7))
        count = draw.choice([1, 1, 2, 3]) if step % 3 == 0 else 1
        if max(len(worlds[0].tokens[slot]) for slot in slots) + count > CONTEXT:
            continue
        tokens = [[draw.randrange(VOCAB) for _ in range(count)] for _ in slots]
        kept = [draw.randrange(1, count + 1) for _ in slots] if count > 1 else None
        if step % 7 == 0:
            for world in worlds:
                move_rows(world, slots[0])
        expected, found = (world.run(slots, tokens, kept) for world in worlds)
        assert_close("logits", found, expected, 1e-5)
    forwards = worlds[1].decoder.stats.forwards
    assert forwards["draft"] > 3
    assert forwards["defer" if dense_below < 100 else "drain"] > 3
    assert (forwards["dense"] > 0) == (dense_below > 0)


def move_rows(world: World, slot: int) -> None:
    """Exchange a sequence's first rows for others of the same content, as the cache does."""
    rows = world.rows[slot]
    old, new = rows[:2].clone(), world.kv.allocate(2)
    world.kv.copy(old, new)
    rows.replace_prefix(new)
    world.kv.free(old)


def test_a_step_that_fails_leaves_no_log_to_the_slots_next_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("graph", dense_below=100)
    world.start(1, [1, 2])
    world.run([1], [[3, 4, 5]], kept=[3])
    log = world.slots.deferred
    assert log is not None
    assert log.length(1) == INTERVAL - 1
    assert log.folds(1)
    with monkeypatch.context() as patch:
        patch.setattr(world.runner.host, "forward", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            world.run([1], [[6]])
    assert world.decoder.stats.forwards["drain"] == 1
    world.slots.reset(1, b"model")
    assert [x[1].item() for x in log.cursor] == [0, 0]
    assert world.slots.pending(1) == 0


def test_buffers_are_as_large_as_was_said() -> None:
    world = World("graph", batch=5)
    assert world.decoder.nbytes == GraphDecoder.bytes_for(5, 3, CONTEXT)


def test_padding_is_under_a_third_and_ends_at_the_largest_batch() -> None:
    for most in range(1, 600):
        sizes = batch_sizes(most)
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == most
        assert all(b - a <= max(4, a / 3) for a, b in pairwise(sizes))


def test_rows_are_copied_only_when_they_are_others() -> None:
    seating = Seating(2, CONTEXT, torch.device("cpu"))
    rows = RowTable(torch.arange(1, 11))
    (seat,) = seating.seat([Span(7, [1], 9, rows)])
    assert seating.table[seat, :9].tolist() == list(range(1, 10))
    # the step writes the newest row itself; what the host would write again is not looked at
    seating.table[seat, 9] = 10
    rows.append(11)
    assert seating.seat([Span(7, [1], 10, rows)]) == [seat]
    assert seating.table[seat, :10].tolist() == list(range(1, 11))
    rows.replace_prefix(torch.arange(10, 0, -1))
    assert seating.seat([Span(7, [1], 10, rows)]) == [seat]
    assert seating.table[seat, :10].tolist() == list(range(10, 0, -1))
