"""The kernels: as numbers in Triton's interpreter where there is no GPU, and compiled where there is one."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch

from holdover.arch.layout import StateLayout
from holdover.codec import Arrangement, Codec, naive
from holdover.codec.torch import TorchForm
from holdover.retention import Element
from holdover.state import SlotPool
from tests.codec.build import bytes_of, layer, poisoned, random_plan, random_pool
from tests.interpreter import require_triton

require_triton()
from holdover.codec.triton import Tiling, TritonForm  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# more than one tile even of tiny states
SMALL = Tiling(elements=128, conv=8, warps=1)
LAYOUTS = {
    "channels": StateLayout((layer(0), layer(1), layer(3))),
    "heads": StateLayout((layer(0, "head", 3), layer(1, "head", 3))),
    "mixed": StateLayout((layer(0), layer(1, "channel", 3, 2, 5, 9, 2), layer(2, "head", 1, 3, 7, 1, 1), layer(5))),
    "odd": StateLayout((layer(0, "channel", 1, 3, 3, 5, 2),), conv_dtype="float32"),
}
DTYPES = ("float32", "float64", "bfloat16", "float16")


def indices(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)


def check(codec: Codec, tiling: Tiling = SMALL) -> None:
    """Pack two slots and unpack them elsewhere, every byte as the definition has it and no other byte touched."""
    host, pool = random_pool(codec.layout), random_pool(codec.layout, device=DEVICE)
    form, records = TritonForm(codec.record, pool, tiling), poisoned(codec, 4, DEVICE)
    form.pack(indices(3, 1), records, indices(0, 2))
    assert records[0].cpu().equal(naive.pack(codec, host, 3))
    assert records[2].cpu().equal(naive.pack(codec, host, 1))
    assert records[1::2].eq(0xAB).all()
    assert all(bytes_of(pool, slot).equal(bytes_of(host, slot)) for slot in range(4)), "packing changed the pool"
    pool.poison(2)
    form.unpack(records, indices(0, 2), indices(2, 3))
    naive.unpack(codec, records[0].cpu(), host, 2)
    naive.unpack(codec, records[2].cpu(), host, 3)
    assert all(bytes_of(pool, slot).equal(bytes_of(host, slot)) for slot in range(4))


@pytest.mark.parametrize("element", get_args(Element))
@pytest.mark.parametrize("arrangement", [None, *get_args(Arrangement)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_codec_is_as_defined(layout: str, arrangement: Arrangement | None, element: Element) -> None:
    plan = None if arrangement is None else random_plan(LAYOUTS[layout], 3, 0.5)
    check(Codec(LAYOUTS[layout], plan, arrangement or "ragged", element))


@pytest.mark.parametrize("element", get_args(Element))
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_state(dtype: str, element: Element) -> None:
    layout = replace(LAYOUTS["channels"], temporal_dtype=dtype)
    check(Codec(layout, random_plan(layout, 3, 0.5), element=element))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(("element", "marked"), [("full", 1), ("bfloat16", 1), ("int8", 8)])
def test_what_is_not_finite_stays_visible(element: Element, marked: int, value: float) -> None:
    codec = Codec(LAYOUTS["channels"], element=element)
    pool, records = random_pool(codec.layout, device=DEVICE), poisoned(codec, 1, DEVICE)
    pool.temporal(1)[1, 1, 2, 5] = value
    form = TritonForm(codec.record, pool, SMALL)
    form.pack(indices(1), records, indices(0))
    form.unpack(records, indices(0), indices(2))
    wrong = ~pool.temporal(1)[2].isfinite()
    assert int(wrong.sum()) == marked
    assert wrong[1, 2, 5]
    assert pool.temporal(0)[2].isfinite().all()


@pytest.mark.parametrize("share", [0, 1])
def test_none_and_all_retained(share: float) -> None:
    check(Codec(LAYOUTS["channels"], random_plan(LAYOUTS["channels"], 0, share), element="int8"))


def test_layers_apart_in_memory_are_separate_runs() -> None:
    codec = Codec(LAYOUTS["mixed"])
    form = TritonForm(codec.record, random_pool(codec.layout))
    assert [[part.layer.index for part in run.parts] for run in form._runs] == [[0], [1], [2], [5]]
    uniform = Codec(LAYOUTS["channels"])
    assert len(TritonForm(uniform.record, random_pool(uniform.layout))._runs) == 1


class Transposed(SlotPool):
    """A pool whose host keeps ``[H, d_v, d_k]`` in memory and channels before time."""

    def temporal(self, layer: int) -> torch.Tensor:
        return _swapped(self, "_swapped_temporal", layer, super().temporal(layer))

    def conv(self, layer: int) -> torch.Tensor:
        return _swapped(self, "_swapped_conv", layer, super().conv(layer))


def _swapped(pool: SlotPool, name: str, layer: int, like: torch.Tensor) -> torch.Tensor:
    kept = pool.__dict__.setdefault(name, {})
    if layer not in kept:
        kept[layer] = like.transpose(-1, -2).contiguous()
    swapped: torch.Tensor = kept[layer].transpose(-1, -2)
    return swapped


@pytest.mark.parametrize("element", get_args(Element))
def test_pool_with_other_strides(element: Element) -> None:
    layout = LAYOUTS["channels"]
    codec = Codec(layout, random_plan(layout, 3, 0.5), element=element)
    pool, records = Transposed(layout, 3, DEVICE), poisoned(codec, 1, DEVICE)
    plain = random_pool(layout)
    for spec in layout.layers:
        pool.temporal(spec.index).copy_(plain.temporal(spec.index))
        pool.conv(spec.index).copy_(plain.conv(spec.index))
    form = TritonForm(codec.record, pool, SMALL)
    form.pack(indices(1), records, indices(0))
    assert records[0].cpu().equal(naive.pack(codec, plain, 1))
    form.unpack(records, indices(0), indices(2))
    naive.unpack(codec, records[0].cpu(), plain, 2)
    for spec in layout.layers:
        assert pool.temporal(spec.index).cpu().equal(plain.temporal(spec.index))
        assert pool.conv(spec.index).cpu().equal(plain.conv(spec.index))


@pytest.mark.gpu
@pytest.mark.parametrize("element", get_args(Element))
def test_codec_runs_the_kernels_in_a_graph(element: Element) -> None:
    layout = StateLayout(tuple(layer(i, "channel", 4, 128, 128, 384) for i in range(3)))
    codec = Codec(layout, random_plan(layout, 3, 0.36), element=element)
    pool, records = random_pool(layout, device="cuda"), poisoned(codec, 2, "cuda")
    form = codec.form(pool)
    assert isinstance(form, TritonForm)
    slots, places, restored = (torch.tensor([n], device="cuda") for n in (1, 0, 2))
    form.pack(slots, records, places)
    form.unpack(records, places, restored)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        form.pack(slots, records, places)
        form.unpack(records, places, restored)
    slots.fill_(3)
    places.fill_(1)
    graph.replay()
    expected = poisoned(codec, 2, "cuda")
    TorchForm(codec.record, pool).pack(slots, expected, places)
    assert records[1].equal(expected[1])
    before = bytes_of(pool, 2)
    TorchForm(codec.record, pool).unpack(records, places, restored)
    assert bytes_of(pool, 2).equal(before)


@pytest.mark.gpu
def test_slots_beyond_32_bits_of_elements() -> None:
    """The last slot begins past 2^31 elements."""
    layout = StateLayout(tuple(layer(i, "channel", 32, 128, 128, 384) for i in range(4)))
    codec = Codec(layout, random_plan(layout, 3, 0.36))
    pool = SlotPool(layout, 2**31 // (4 * 32 * 128 * 128) + 8, "cuda")
    last = pool.num_slots
    for tensor in pool.tensors_of(last):
        tensor.normal_()
    pool.poison(last - 1)
    records = poisoned(codec, 1, "cuda")
    codec.pack(pool, [last], records, [0])
    codec.unpack(records, [0], pool, [last - 1])
    for i, spec in enumerate(layout.layers):
        assert codec.plan is not None
        kept = codec.plan.retained[i].view(32, 128, 1).to("cuda")
        state = pool.temporal(spec.index)
        assert state[last - 1].equal(torch.where(kept, state[last], torch.zeros_like(state[last])))
        assert pool.conv(spec.index)[last - 1].equal(pool.conv(spec.index)[last])
