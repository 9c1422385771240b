"""Packing slots that have a log: the record is that of the state which base and log stand for (fault class 16).

The kernels run in Triton's interpreter where there is no GPU.
"""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor

from holdover.arch.layout import StateLayout
from holdover.codec import Arrangement, Codec, naive
from holdover.codec.codec import Form
from holdover.codec.torch import TorchForm
from holdover.errors import CheckpointMismatchError
from holdover.retention import Element
from holdover.state import SlotPool
from tests.codec.build import bytes_of, poisoned, random_plan
from tests.codec.logged import feed, layer, logged_pool, snapshot
from tests.helpers import assert_close
from tests.interpreter import require_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

MERGE_INTERVAL = 5
FILLS = range(MERGE_INTERVAL)
LAYOUTS = {
    "gdn": StateLayout((layer(0, "gdn"), layer(2, "gdn"))),
    "gdn-grouped": StateLayout((layer(0, "gdn", 4, 2), layer(1, "gdn", 4, 2))),
    "kda": StateLayout((layer(0, "kda"), layer(1, "kda"))),
    "mamba2": StateLayout((layer(0, "mamba2", key_heads=1), layer(1, "mamba2", key_heads=1)), conv_dtype="float32"),
    "rwkv6": StateLayout((layer(0, "rwkv6", width=1), layer(1, "rwkv6", width=2))),
    # of one shape, and yet three kinds of log
    "mixed": StateLayout(tuple(layer(i, f) for i, f in enumerate(("gdn", "gdn", "mamba2", "kda")))),
}
each_layout = pytest.mark.parametrize("layout", LAYOUTS)
each_element = pytest.mark.parametrize("element", get_args(Element))
each_form = pytest.mark.parametrize("form", ["torch", "triton"])


def codec_of(layout: str, element: Element, arrangement: Arrangement | None = "ragged") -> Codec:
    plan = None if arrangement is None else random_plan(LAYOUTS[layout], 5, 0.5)
    return Codec(LAYOUTS[layout], plan, arrangement or "ragged", element)


def form_of(name: str, codec: Codec, pool: SlotPool) -> Form:
    if name == "torch":
        return TorchForm(codec.record, pool)
    require_triton()
    from holdover.codec.triton import Tiling, TritonForm

    # tiles that hold rows of several heads
    return TritonForm(codec.record, pool, Tiling(elements=64, conv=8, warps=1))


def indices(*numbers: int) -> Tensor:
    return torch.tensor(numbers, device=DEVICE)


def check(codec: Codec, form: str) -> None:
    """Pack slots of every fill in one call; then the same states after their logs were folded into slots of their own.

    A sum in another order may lie on the other side of a rounding boundary: stored elements differ by one quantum
    at most. Where nothing is pending, bytes only move.
    """
    pool = logged_pool(codec.layout, FILLS, MERGE_INTERVAL, DEVICE)
    slots, copies = range(1, len(FILLS) + 1), range(len(FILLS) + 1, 2 * len(FILLS) + 1)
    packing, records, settled = form_of(form, codec, pool), *(poisoned(codec, len(FILLS), DEVICE) for _ in range(2))
    before = snapshot(pool)
    packing.pack(indices(*slots), records, indices(*FILLS))
    assert all(map(torch.equal, snapshot(pool), before)), "packing changed the pool"
    for slot, copy in zip(slots, copies, strict=True):
        pool.copy(slot, copy)
    packing.pack(indices(*copies), settled, indices(*FILLS))
    assert records[0].equal(settled[0])
    compare(codec, records, settled)
    host = logged_pool(codec.layout, FILLS, MERGE_INTERVAL)
    assert records[0].cpu().equal(naive.pack(codec, host, 1))
    if codec.element == "full":
        compare(codec, records, torch.stack([naive.pack(codec, host, slot) for slot in slots]))


def compare(codec: Codec, ours: Tensor, theirs: Tensor) -> None:
    ours, theirs, count = ours.cpu(), theirs.cpu(), len(ours)
    conv = codec.record.ends[1]
    assert ours[:, conv:].equal(theirs[:, conv:]), "conv inputs and alignment only move"
    pool = SlotPool(codec.layout, 2 * count)
    codec.unpack(torch.cat([ours, theirs]), range(2 * count), pool, range(1, 2 * count + 1))
    for spec in codec.layout.layers:
        got, ref = pool.temporal(spec.index)[1:].split(count)
        if codec.element == "full":
            assert_close(f"layer {spec.index}", got, ref, 1e-6)
            continue
        assert got.isfinite().all()
        largest = ref.abs().amax(-1, keepdim=True)
        # a bfloat16 has 7 bits behind its leading one; where terms cancel, fp32's error is that of the row's largest
        quantum = largest / 127 if codec.element == "int8" else ref.abs() / 2**7
        assert ((got - ref).abs() <= quantum + 1e-5 * largest).all()


@each_layout
@each_element
@pytest.mark.parametrize("arrangement", [None, *get_args(Arrangement)])
def test_record_of_a_pending_slot_is_that_of_its_logical_state(
    layout: str, arrangement: Arrangement | None, element: Element
) -> None:
    check(codec_of(layout, element, arrangement), "torch")


@each_layout
@each_element
def test_kernels_pack_the_logical_state(layout: str, element: Element) -> None:
    check(codec_of(layout, element), "triton")


@pytest.mark.parametrize(("layout", "arrangement"), [("gdn-grouped", None), ("kda", "padded")])
def test_kernels_pack_the_logical_state_however_it_is_arranged(layout: str, arrangement: Arrangement | None) -> None:
    check(codec_of(layout, "int8", arrangement), "triton")


@each_form
def test_a_log_without_room_is_no_log(form: str) -> None:
    codec = codec_of("gdn", "full")
    pool, records = logged_pool(codec.layout, [0], 1, DEVICE), poisoned(codec, 1, DEVICE)
    form_of(form, codec, pool).pack(indices(1), records, indices(0))
    assert records[0].cpu().equal(naive.pack(codec, logged_pool(codec.layout, [0], 1), 1))


def test_layers_with_other_logs_are_separate_runs() -> None:
    codec = codec_of("mixed", "full")
    form = form_of("triton", codec, logged_pool(codec.layout, [0], MERGE_INTERVAL, DEVICE))
    assert [[part.layer.index for part in run.parts] for run in form._runs] == [[0, 1], [2], [3]]  # type: ignore[attr-defined]


@each_layout
def test_codec_leaves_the_log_pending_and_unpacks_the_whole_state(layout: str) -> None:
    """Restored onto a slot that has a log of its own: nothing of that is left."""
    codec = Codec(LAYOUTS[layout])
    pool, records = logged_pool(codec.layout, [4, 3], MERGE_INTERVAL, DEVICE), poisoned(codec, 1, DEVICE)
    codec.pack(pool, [1], records, [0])
    assert pool.pending(1) == 4
    codec.unpack(records, [0], pool, [2])
    assert pool.pending(2) == 0
    pool.copy(1, 3)
    for tensor, expected in zip(pool.tensors_of(2), pool.tensors_of(3), strict=True):
        assert_close("state", tensor, expected, 1e-6)


@pytest.mark.parametrize("slots", [(1, 2), (2, 1)])
def test_a_refresh_of_pending_slots_is_refused(slots: tuple[int, int]) -> None:
    codec = codec_of("gdn", "full")
    pool = logged_pool(codec.layout, [2, 0], MERGE_INTERVAL, DEVICE)
    before = snapshot(pool)
    with pytest.raises(CheckpointMismatchError, match=r"slots \[1\] have tokens in their logs"):
        codec.copy_omitted(pool, *slots)
    assert all(map(torch.equal, snapshot(pool), before))
    pool.settle([1])
    codec.copy_omitted(pool, *slots)


def test_what_is_not_finite_stays_visible() -> None:
    codec = codec_of("kda", "int8", None)
    pool, records = logged_pool(codec.layout, [3], MERGE_INTERVAL, DEVICE), poisoned(codec, 1, DEVICE)
    pool.temporal(1)[1, 1, 3, 5] = float("nan")
    codec.pack(pool, [1], records, [0])
    codec.unpack(records, [0], pool, [2])
    wrong = ~pool.temporal(1)[2].isfinite()
    assert wrong[1, 3].all()
    assert int(wrong.sum()) == 6
    assert pool.temporal(0)[2].isfinite().all()


@pytest.mark.gpu
@each_element
def test_a_graph_packs_whatever_is_pending_when_it_runs(element: Element) -> None:
    codec = codec_of("mixed", element)
    pool, records = logged_pool(codec.layout, [0, 2], MERGE_INTERVAL, "cuda"), poisoned(codec, 2, "cuda")
    form, slots, places = codec.form(pool), indices(1), indices(0)
    form.pack(slots, records, places)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        form.pack(slots, records, places)
    for slot in (1, 2):
        feed(pool, slot, (3, 2)[slot - 1])
        slots.fill_(slot)
        graph.replay()
        assert pool.pending(slot) == (3, 4)[slot - 1]
        form.pack(slots, records, indices(1))
        assert records[0].equal(records[1])
        pool.settle([slot])
        expected = bytes_of(pool, slot)
        form.pack(slots, records, indices(1))
        assert bytes_of(pool, slot).equal(expected)
        compare(codec, records[:1], records[1:])
