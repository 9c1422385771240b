"""Below the resident tiers: what was written through comes back byte for byte, and what cannot is passed over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from holdover.errors import CapacityError, SpillError
from holdover.prefix.spill import Spill
from holdover.state import KeyChain, Lineage, SlotPool
from holdover.store import KVPool, PackedPool, StateTiers
from holdover.store.directory import Directory
from holdover.store.host import HostShelf
from holdover.store.spill import Shelf
from holdover.store.writer import SpillWriter
from tests.prefix.build import A, B, Running, World, salt_of
from tests.state import build as states
from tests.store import build as rows_of_kv
from tests.store.build import are_rows_of
from tests.store.tier_build import half, whole

TEN = list(range(10))
PLENTY = 1 << 20
CODECS = {"none": None, "half": half(states.MIXED), "int8": half(states.MIXED, "int8"), "dense": whole(states.MIXED)}
every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


class SpillWorld(World):
    """A world over one shelf, which its sequences write through to and ask first."""

    def __init__(self, shelf: Shelf, codec=None, **sizes) -> None:
        packed = {} if codec is None else {"codec": codec, "packed": 6}
        layout = codec.layout if codec is not None else states.MIXED
        super().__init__(**{"slots": 8, "state": layout, "kv": rows_of_kv.MIXED, **packed, **sizes})
        self.shelf = shelf
        self.spill = Spill(self.cache, [shelf], SpillWriter([shelf], lag=0))
        self.source: str | None = None
        self._stored: dict[bytes, tuple[int, ...]] = {}

    def open(self, prompt, namespace=A, *, reuse=True, max_losses=None):
        self.source = self.spill.fetch(namespace, prompt, max_losses=max_losses) if reuse else None
        for node in self.nodes():
            if node.checkpoint is not None and id(node.checkpoint) not in self._pasts:
                self._pasts[id(node.checkpoint)] = node.checkpoint, self._stored[node.checkpoint.header.key]
        return super().open(prompt, namespace, reuse=reuse, max_losses=max_losses)

    def checkpoint(self, sequence, *, dense=False):
        super().checkpoint(sequence, dense=dense)
        self.write_through(sequence)

    def donate(self, sequence, *, dense=False):
        super().donate(sequence, dense=dense)
        self.write_through(sequence)
        self.tiers.maintain()
        self.tiers.maintain()

    def write_through(self, sequence: Running) -> None:
        node = self.node(sequence.tokens, sequence.namespace)
        assert node.checkpoint is not None
        self.spill.store(node)
        if node.spilled is not None:
            self._stored[node.spilled.key] = self.past(node.checkpoint)

    def _check_rows(self, node, namespace, tokens):
        # rows that came up with worse ones are called as bad as those, which promises less than they are
        kinds = [Lineage("nr", losses) if losses else Lineage() for losses in range(node.lineage.losses + 1)]
        right = [are_rows_of(self.kv, node.rows, tokens, salt_of(namespace, kind)) for kind in kinds]
        assert torch.stack(right).any(0).all()

    def name(self, prompt: Sequence[int], namespace: bytes = A):
        chain = KeyChain(namespace)
        chain.extend(prompt)
        return self.shelf.find(len(prompt), chain.key())


@pytest.fixture(params=["host", "disk"])
def make_shelf(request, tmp_path):
    """A shelf of each kind."""

    def make(budget: int = PLENTY) -> Shelf:
        if request.param == "host":
            return HostShelf(budget)
        return Directory(tmp_path / "spill", budget=budget, identity="model")

    return make


def file_at(tmp_path: Path, depth: int) -> Path:
    """The file of the entry at a depth; there is one."""
    (found,) = (tmp_path / "spill" / "model").glob(f"{depth}-*.entry")
    return found


# written through, and back


@every_codec
def test_what_was_evicted_from_every_tier_comes_back_byte_for_byte(make_shelf, codec):
    world = SpillWorld(make_shelf(), codec)
    world.serve(TEN, stops=(4, 8))
    stored = {depth: world.tiers.encode(world.node(TEN[:depth]).checkpoint) for depth in (4, 8, 10)}
    rows = world.kv.read_bytes(torch.cat([node.rows for node in world.node(TEN).path()]))
    # all of it goes, and every freed slot and row is poison
    world.flush()
    assert not world.cache.roots
    assert (world.slots.num_free, world.kv.num_free) == (8, world.kv.num_rows)
    for depth, prompt in ((10, [*TEN, 99]), (8, TEN), (4, TEN[:8])):
        sequence = world.open(prompt)
        assert (len(sequence.tokens), world.source) == (depth, world.shelf.tier)
        node = world.node(TEN[:depth])
        again = world.tiers.encode(node.checkpoint)
        assert again[0] == stored[depth][0]
        assert torch.equal(again[1], stored[depth][1])
        assert torch.equal(world.kv.read_bytes(sequence.rows[:depth]), rows[:depth])
        world.check()
        world.run(sequence)
        world.abort(sequence)
        world.check()
        world.flush()
    world.check_empty()


@every_codec
def test_what_the_tree_still_has_is_not_read_again(make_shelf, codec):
    world = SpillWorld(make_shelf(), codec)
    world.serve(TEN, stops=(4,))
    for prompt in ([*TEN, 99], TEN[:5]):
        world.abort(world.open(prompt))
        assert world.source is None
    world.check_empty()


@every_codec
def test_a_deeper_entry_than_the_trees_is_brought_up_above_what_the_tree_holds(make_shelf, codec):
    world = SpillWorld(make_shelf(), codec)
    world.serve(TEN, stops=(4, 8))
    world.flush()
    # the tree holds four tokens with their state, and six of the rows, from another conversation
    sequence = world.open(TEN[:5])
    world.run(sequence)
    world.run(sequence, [5, 77])
    world.publish_rows(sequence)
    held = {n.depth - i: r for n in sequence.hold.node.path() for i, r in enumerate(reversed(n.rows.tolist()))}
    second = world.open([*TEN, 99])
    assert (len(second.tokens), world.source) == (10, world.shelf.tier)
    assert second.rows[:6].tolist() == [held[depth] for depth in range(1, 7)], "the tree's rows stand for the entry's"
    world.check()
    for one in list(world.running):
        world.abort(one)
    world.check_empty()


def test_each_turn_stores_only_the_rows_above_the_turn_before(make_shelf):
    world = SpillWorld(make_shelf(), half(states.MIXED))
    prompt, ends = TEN[:4], []
    for turn in range(4):
        sequence = world.open(prompt)
        # every turn starts from nothing resident
        assert len(sequence.tokens) == (ends[-1] if ends else 0)
        world.run(sequence)
        world.donate(sequence)
        name = world.name(prompt)
        assert (name.depth, name.parent_depth) == (len(prompt), ends[-1] if ends else 0)
        assert len(world.shelf.get(name).kv) == len(prompt) - name.parent_depth
        ends.append(len(prompt))
        world.flush()
        prompt = [*prompt, 20 + turn, 30 + turn]
    sequence = world.open(prompt)
    assert len(sequence.tokens) == ends[-1]
    world.check()
    world.abort(sequence)
    world.check_empty()


def test_a_turn_whose_parent_left_the_shelf_stores_all_its_rows():
    shelf = HostShelf(PLENTY)
    world = SpillWorld(shelf)
    world.serve(TEN[:4])
    sequence = world.open(TEN)
    world.run(sequence)
    shelf._entries.clear()
    shelf._used.clear()
    world.donate(sequence)
    assert (world.name(TEN).parent_depth, len(shelf.get(world.name(TEN)).kv)) == (0, 10)
    world.flush()
    assert len(world.open([*TEN, 0]).tokens) == 10
    world.check()


def test_tenants_never_share(make_shelf):
    world = SpillWorld(make_shelf())
    world.serve(TEN, A)
    world.flush()
    assert (world.open([*TEN, 0], B).tokens, world.source) == ([], None)
    world.check()


# class 14: an entry without one of its parts is no entry


def removed(path: Path) -> None:
    path.unlink()


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(at: float) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(at * (len(content) - 1))] ^= 1
        path.write_bytes(content)

    return flip


DAMAGES = {
    "removed": removed,
    "truncated": truncated,
    "emptied": emptied,
    **{f"flipped-{at}": flipped(at) for at in (0.0, 0.1, 0.9, 1.0)},
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize(("spoilt", "resumed"), [((10,), 8), ((8, 10), 4), ((4,), 0), ((4, 8, 10), 0), ((8,), 4)])
def test_a_damaged_entry_is_passed_over_with_all_that_continue_it(tmp_path, damage, spoilt, resumed):
    shelf = Directory(tmp_path / "spill", budget=PLENTY, identity="model")
    world = SpillWorld(shelf, half(states.MIXED))
    world.serve(TEN, stops=(4, 8))
    world.flush()
    for depth in spoilt:
        damage(file_at(tmp_path, depth))
    sequence = world.open([*TEN, 99])
    assert (len(sequence.tokens), world.source) == (resumed, "disk" if resumed else None)
    world.check()
    world.run(sequence)
    world.donate(sequence)
    world.check_empty()


def test_what_is_continued_is_needed_for_its_rows_alone(tmp_path):
    shelf = Directory(tmp_path / "spill", budget=PLENTY, identity="model")
    world = SpillWorld(shelf, half(states.MIXED))
    world.serve(TEN, stops=(4,))
    world.flush()
    # the middle of the file is its state
    flipped(0.5)(file_at(tmp_path, 4))
    sequence = world.open([*TEN, 99])
    assert len(sequence.tokens) == 10
    world.check()
    world.abort(sequence)
    world.flush()
    assert (world.open(TEN[:5]).tokens, world.spill.counters["passed_over"]) == ([], 1)
    world.check()


def test_an_entry_under_anothers_name_is_passed_over(tmp_path):
    shelf = Directory(tmp_path / "spill", budget=PLENTY, identity="model")
    world = SpillWorld(shelf)
    world.serve(TEN)
    ours = file_at(tmp_path, 10)
    content = ours.read_bytes()
    ours.unlink()
    world.flush()
    world.serve(TEN[::-1])
    file_at(tmp_path, 10).write_bytes(content)
    world.flush()
    sequence = world.open([*TEN[::-1], 99])
    assert (sequence.tokens, world.spill.counters["passed_over"]) == ([], 1)
    world.check()


def test_entries_of_another_codec_are_refused_by_what_they_say(make_shelf):
    shelf = make_shelf()
    world = SpillWorld(shelf, half(states.MIXED))
    world.serve(TEN)
    other = SpillWorld(shelf, half(states.MIXED, "int8"))
    sequence = other.open([*TEN, 99])
    assert (sequence.tokens, other.spill.counters["passed_over"]) == ([], 1)
    other.check()


# no room


def test_without_rows_for_it_an_entry_stays_where_it_is_and_the_request_goes_on(make_shelf):
    world = SpillWorld(make_shelf(), rows=14)
    world.serve(TEN, stops=(4,))
    world.flush()
    other = world.open([7] * 5)
    world.run(other)
    sequence = world.open([*TEN, 99])
    assert (sequence.tokens, world.source, world.spill.counters["no_room"]) == ([], None, 1)
    world.check()
    world.abort(other)
    world.abort(sequence)
    sequence = world.open([*TEN, 99])
    assert len(sequence.tokens) == 10
    world.check()


@pytest.mark.parametrize("codec", [None, half(states.MIXED)], ids=["native", "packed"])
def test_without_a_slot_for_it_an_entry_stays_where_it_is(make_shelf, codec):
    world = SpillWorld(make_shelf(), codec, slots=2, **({"packed": 0} if codec else {}))
    world.serve(TEN)
    world.flush()
    first = world.open([7, 7])
    world.run(first)
    if codec is None:
        # the only slot left holds the entry until the sequence takes it over
        assert len(world.open([*TEN, 99]).tokens) == 10
    else:
        assert (world.open([*TEN, 99]).tokens, world.spill.counters["no_room"]) == ([], 1)
    world.check()
    with pytest.raises(CapacityError):
        world.open([*TEN, 98])
    world.check()


def test_a_budget_too_small_for_any_entry_stores_nothing_and_serves(make_shelf):
    """Class 18: one entry less a byte."""
    big = SpillWorld(make_shelf())
    big.serve(TEN)
    entry = big.shelf.get(big.name(TEN))
    shelf = HostShelf(entry.nbytes - 1)
    world = SpillWorld(shelf)
    world.serve(TEN)
    assert (world.spill.totals()["refused"], list(shelf.depths())) == (1, [])
    world.flush()
    assert world.open([*TEN, 0]).tokens == []
    world.check()


def test_a_shelf_that_cannot_write_costs_the_copy_only(make_shelf, monkeypatch):
    world = SpillWorld(make_shelf())
    monkeypatch.setattr(type(world.shelf), "put", lambda *_: 1 / 0)
    world.serve(TEN)
    assert world.spill.totals()["failed"] == 1
    assert len(world.open([*TEN, 0]).tokens) == 10
    world.check()


# lineage


def lossy_world(shelf):
    """Depth 10 on the shelf, computed by a sequence that had resumed lossily at 4."""
    world = SpillWorld(shelf, half(states.MIXED))
    world.serve(TEN[:4])
    sequence = world.open(TEN)
    assert sequence.past == (4,)
    world.run(sequence)
    world.donate(sequence)
    assert world.name(TEN).losses == 1
    return world


def test_a_better_entry_replaces_a_worse_one_and_never_the_reverse(make_shelf):
    world = lossy_world(make_shelf())
    for most, losses in ((0, 0), (None, 0)):
        sequence = world.open(TEN, max_losses=most, reuse=most is None)
        world.run(sequence)
        world.donate(sequence)
        assert world.name(TEN).losses == losses
        world.check()
    world.flush()
    sequence = world.open([*TEN, 99])
    assert (sequence.past, sequence.hold.lineage.losses) == ((10,), 1)
    world.check()


def test_losses_on_the_shelf_count_and_a_cap_passes_over_them(make_shelf):
    world = lossy_world(make_shelf())
    world.flush()
    for most, depth, losses in ((0, 0, 0), (1, 4, 1), (2, 10, 2), (None, 10, 2)):
        sequence = world.open([*TEN, 99], max_losses=most)
        assert (len(sequence.tokens), sequence.hold.lineage.losses) == (depth, losses)
        world.check()
        world.abort(sequence)
        world.flush()
    world.check_empty()


# class 9: whatever fails on the way up or down, everything balances


POINTS = [
    (KVPool, "allocate"),
    (KVPool, "write_bytes"),
    (KVPool, "read_bytes"),
    (StateTiers, "admit"),
    (StateTiers, "encode"),
    (StateTiers, "verify"),
    (PackedPool, "write"),
    (PackedPool, "commit"),
    (SlotPool, "adopt"),
    (HostShelf, "get"),
]


@pytest.mark.parametrize("error", [SpillError("injected"), CapacityError("injected"), RuntimeError()], ids=repr)
@pytest.mark.parametrize(("owner", "method"), POINTS, ids=lambda x: x if isinstance(x, str) else x.__name__)
@pytest.mark.parametrize("codec", [None, half(states.MIXED)], ids=["native", "packed"])
def test_a_call_that_fails_on_the_way_leaks_nothing(owner, method, error, codec, monkeypatch):
    world = SpillWorld(HostShelf(PLENTY), codec)
    world.serve(TEN, stops=(4,))
    world.flush()
    with monkeypatch.context() as patch:
        original, left = getattr(owner, method), [1]

        def once(*args, **kwargs):
            if left:
                left.pop()
                raise error
            return original(*args, **kwargs)

        patch.setattr(owner, method, once)
        try:
            world.serve([*TEN, 99])
        except type(error):
            for sequence in list(world.running):
                world.abort(sequence)
    world.check()
    sequence = world.open([*TEN, 99, 98])
    assert len(sequence.tokens) >= 10
    world.check()
    world.abort(sequence)
    world.check_empty()
