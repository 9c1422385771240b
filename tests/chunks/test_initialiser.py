"""Initial states at the first recurrent layer, on heads that remember."""

from __future__ import annotations

import itertools

import pytest
import torch

from holdover.chunks import ChunkOptions, composed_namespace, pass_over, seed
from holdover.chunks.initialiser import Exact, Last, SeededRandom, Zero
from holdover.codec import Codec
from holdover.errors import CheckpointMismatchError, RequestError
from holdover.state import Lineage
from holdover.state.key import chain_of
from tests.chunks.first_layer import EVERYTHING, WIDTH, FirstLayer, tokens_of
from tests.helpers import assert_close
from tests.ops.families import CASES, Case

RTOL = 1e-5
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
# around the conv window, around the kernels' chunks, and the usual length of a chunk
LENGTHS = [(1,), (3, 1, 2), (511, 512, 513), (40, 1, 64), (2, 2, 2, 70), (4, 3)]


def start(model: FirstLayer, initialiser, chunks, salt="s"):
    entries = [model.chunk(tokens) for tokens in chunks]
    whole = tuple(itertools.chain(*chunks))
    at = chain_of(composed_namespace(b"model", salt), whole)
    lineage = seed(initialiser, model.tiers, entries, model.slot, model.scratch, at=at, salt=salt)
    return entries, lineage, at


def chunks_of(lengths):
    return [tokens_of(n, seed=100 + i) for i, n in enumerate(lengths)]


def assert_heads(got: torch.Tensor, wanted: torch.Tensor) -> None:
    for head in range(len(wanted)):
        assert_close(f"head {head}", got[head], wanted[head], RTOL)


@each_case
@pytest.mark.parametrize("lengths", LENGTHS)
def test_exact_equals_a_run_whose_window_restarts(case: Case, lengths) -> None:
    model, chunks = FirstLayer(case), chunks_of(lengths)
    start(model, Exact(), chunks)
    assert_heads(model.pool.temporal(0)[model.slot], model.reference(*chunks))


@each_case
@pytest.mark.parametrize("lengths", LENGTHS)
def test_seams_run_again_give_the_true_state(case: Case, lengths) -> None:
    """The first tokens of each chunk see their true predecessors; the others' windows lie within the chunk."""
    model, chunks = FirstLayer(case), chunks_of(lengths)
    slot = model.fresh(model.slot)
    for tokens in chunks:
        entry = model.chunk(tokens)
        model.run(slot, tokens[: WIDTH - 1])
        pass_over(model.tiers, entry, slot, model.scratch)
    whole = tuple(itertools.chain(*chunks))
    assert_heads(model.pool.temporal(0)[slot], model.reference(whole))
    true = model.fresh(model.other)
    model.run(true, whole)
    assert torch.equal(model.pool.conv(0)[slot], model.pool.conv(0)[true])


@each_case
def test_without_it_the_seams_show(case: Case) -> None:
    model, chunks = FirstLayer(case), chunks_of((64, 64, 64))
    start(model, Exact(), chunks)
    true = model.reference(tuple(itertools.chain(*chunks)))
    assert float((model.pool.temporal(0)[model.slot] - true).norm() / true.norm()) > 3e-3


@each_case
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_every_order(case: Case, order) -> None:
    model, chunks = FirstLayer(case), chunks_of((33, 5, 64))
    ordered = [chunks[i] for i in order]
    start(model, Exact(), ordered)
    assert_heads(model.pool.temporal(0)[model.slot], model.reference(*ordered))


@each_case
def test_one_chunk_twice(case: Case) -> None:
    model, chunk = FirstLayer(case), tokens_of(40, 3)
    entries, _, _ = start(model, Exact(), [chunk, chunk])
    assert entries[0] is entries[1]
    assert_heads(model.pool.temporal(0)[model.slot], model.reference(chunk, chunk))


@pytest.mark.parametrize("initialiser", [Exact(), Last(), SeededRandom(3)], ids=lambda i: i.name)
def test_one_chunk_alone_is_its_own_prefill(initialiser) -> None:
    model, chunk = FirstLayer(CASES[0]), tokens_of(70, 3)
    start(model, initialiser, [chunk])
    true = model.fresh(model.other)
    model.run(true, chunk)
    assert torch.equal(model.pool.temporal(0)[model.slot], model.pool.temporal(0)[true])
    assert torch.equal(model.pool.conv(0)[model.slot], model.pool.conv(0)[true])


def test_last_is_the_last_whole() -> None:
    model, chunks = FirstLayer(CASES[0]), chunks_of((30, 20, 10))
    entries, lineage, at = start(model, Last(), chunks)
    assert lineage == Lineage("composed", 0, "s")
    assert model.pool.header(model.slot).key == at.key()
    assert model.pool.header(model.slot).lineage == lineage
    assert not model.pool.is_whole(model.scratch)
    source = entries[-1].checkpoint.slot
    assert torch.equal(model.pool.temporal(0)[model.slot], model.pool.temporal(0)[source])
    assert torch.equal(model.pool.conv(0)[model.slot], model.pool.conv(0)[source])


def test_random_is_one_of_them_and_the_seed_says_which() -> None:
    model, chunks = FirstLayer(CASES[0]), chunks_of((30, 20, 10))
    seen = set()
    for number in range(12):
        states = []
        for _ in range(2):
            entries, _, _ = start(model, SeededRandom(number), chunks)
            states.append(model.pool.temporal(0)[model.slot].clone())
        assert torch.equal(*states)
        (index,) = [
            i for i, e in enumerate(entries) if torch.equal(states[0], model.pool.temporal(0)[e.checkpoint.slot])
        ]
        assert torch.equal(model.pool.conv(0)[model.slot], model.pool.conv(0)[entries[index].checkpoint.slot])
        seen.add(index)
    assert seen == {0, 1, 2}
    assert SeededRandom(1).name != SeededRandom(2).name


def test_zero_and_a_full_run_are_a_prefill() -> None:
    model, chunks = FirstLayer(CASES[0]), chunks_of((30, 20))
    start(model, Zero(), chunks)
    assert not model.pool.temporal(0)[model.slot].any()
    assert not model.pool.conv(0)[model.slot].any()
    whole = tuple(itertools.chain(*chunks))
    model.run(model.slot, whole)
    assert_heads(model.pool.temporal(0)[model.slot], model.reference(whole))


def test_from_packed_checkpoints_with_their_losses() -> None:
    """Lossless records give the same bits; INT8 states come with a loss in their lineage."""
    case, chunks = CASES[0], chunks_of((64, 40))
    dense = FirstLayer(case)
    start(dense, Exact(), chunks)
    for element, losses in (("full", 0), ("int8", 1)):
        packed = FirstLayer(case, packed=Codec(dense.layout, element=element))
        entries, lineage, _ = start(packed, Exact(), chunks)
        assert {entry.checkpoint.tier for entry in entries} == {"compressed"}
        assert lineage.losses == losses
        same = torch.equal(packed.pool.temporal(0)[packed.slot], dense.pool.temporal(0)[dense.slot])
        assert same == (element == "full")


@pytest.mark.parametrize("initialiser", [Exact(), Last()], ids=lambda i: i.name)
def test_a_checkpoint_that_is_another_state_is_refused(initialiser) -> None:
    model, chunks = FirstLayer(CASES[0]), chunks_of((30, 20))
    entries = [model.chunk(tokens) for tokens in chunks]
    model.pool.adopt(entries[-1].checkpoint.slot, entries[0].chain.copy(), Lineage())
    at = chain_of(b"", (1,))
    with pytest.raises(CheckpointMismatchError):
        seed(initialiser, model.tiers, entries, model.slot, model.scratch, at=at, salt="")
    assert not model.pool.is_whole(model.slot)


def test_what_was_not_kept_is_refused() -> None:
    model, chunks = FirstLayer(CASES[0], ChunkOptions()), chunks_of((30, 20))
    with pytest.raises(RequestError, match="kept with transitions"):
        start(model, Exact(), chunks)
    with pytest.raises(RequestError, match="kept with bodies"):
        pass_over(model.tiers, model.chunk(chunks[0]), model.fresh(model.slot), model.scratch)
    # one chunk needs no transition
    start(model, Exact(), chunks[:1])


def test_extras_take_the_bytes_that_were_reserved() -> None:
    for case in CASES:
        model = FirstLayer(case, EVERYTHING)
        for length in (1, 3, 4, 33):
            before = model.store.extra_bytes
            entry = model.chunk(tokens_of(length, length))
            assert model.store.extra_bytes - before == entry.extra_bytes > 0
