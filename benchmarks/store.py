"""What packing and unpacking checkpoints costs, beside a plain copy of as many bytes, in one run.

    python -m benchmarks.store [--device cuda] [--quick] [--sweep]

On a GPU both are replays of CUDA graphs that rotate among slots and records, so that the L2 cache cannot hold them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Literal

import torch
from torch import Tensor

from benchmarks import common
from benchmarks.common import Aim, Row
from holdover.arch.layout import RecurrentLayer, StateLayout
from holdover.codec import Codec, naive
from holdover.codec.codec import Form
from holdover.retention import Element, RetentionPlan
from holdover.state import SlotPool

Direction = Literal["pack", "unpack"]
DIRECTIONS: tuple[Direction, ...] = ("pack", "unpack")
ELEMENTS: tuple[Element, ...] = ("full", "int8")

AIM = Aim(0.75, at_least=True)
# what a kernel that streams reaches on one H200: the floor that is printed is bytes / this
H200_BYTES_PER_S = 4.2e12


@dataclass(frozen=True)
class Shape:
    """One model's state and a plan that keeps a random share of its units."""

    name: str
    layout: StateLayout
    share: float

    def plan(self) -> RetentionPlan:
        generator = torch.Generator().manual_seed(0)
        horizons = [
            torch.where(torch.rand(n, generator=generator) < self.share, 64.0, 8.0) for n in self.layout.units_per_layer
        ]
        return RetentionPlan.select(
            horizons, 16, model=self.name, layout=self.layout, gate="softplus", gate_input=-0.3, epsilon=1e-3
        )


KIMI_LINEAR = Shape(
    "kimi-linear",
    StateLayout(tuple(RecurrentLayer(i, "kda", 32, 32, 128, 128, "channel", 12288, 4) for i in range(20))),
    0.357,
)
QWEN3_NEXT = Shape(
    "qwen3-next",
    StateLayout(tuple(RecurrentLayer(i, "gdn", 32, 16, 128, 128, "head", 8192, 4) for i in range(36))),
    0.76,
)


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        batches: checkpoints of one call.
        slots: slots and records that calls rotate among.
        calls: calls of one timing at most.
        repeats: timings of every arm.
    """

    batches: tuple[int, ...]
    slots: int
    calls: int
    repeats: int


SCALES = {
    ("cuda", False): Scale((1, 2, 4, 8, 16, 32), 64, 16, 50),
    ("cuda", True): Scale((1, 8), 16, 8, 20),
    ("cpu", False): Scale((1, 2, 4), 4, 2, 10),
    ("cpu", True): Scale((1,), 2, 1, 3),
}


@dataclass(frozen=True, eq=False)
class Workplace:
    """One codec with random slots, and a record of each.

    Attributes:
        codec: the codec.
        pool: slots ``1 .. n``.
        records: uint8 ``[n, nbytes]``.
    """

    codec: Codec
    pool: SlotPool
    records: Tensor

    @classmethod
    def build(cls, codec: Codec, slots: int, device: str) -> Workplace:
        pool = SlotPool(codec.layout, slots, device)
        for slot in range(1, slots + 1):
            for tensor in pool.tensors_of(slot):
                tensor.normal_()
        return cls(codec, pool, torch.empty(slots, codec.nbytes, dtype=torch.uint8, device=device))

    def verify(self) -> None:
        """Fail unless the first slot is packed and unpacked bit for bit as defined. Fills every record."""
        host, codec = SlotPool(self.codec.layout, 1), self.codec
        for ours, theirs in zip(host.tensors_of(1), self.pool.tensors_of(1), strict=True):
            ours.copy_(theirs)
        codec.pack(self.pool, range(1, len(self.records) + 1), self.records, range(len(self.records)))
        record = naive.pack(codec, host, 1)
        if not self.records[0].cpu().equal(record):
            raise AssertionError(f"{codec.name}: packed bytes are not the defined ones")
        codec.unpack(self.records, [0], self.pool, [2])
        naive.unpack(codec, record, host, 1)
        for ours, theirs in zip(self.pool.tensors_of(2), host.tensors_of(1), strict=True):
            if not ours.cpu().equal(theirs):
                raise AssertionError(f"{codec.name}: the restored state is not the defined one")

    def bytes_moved(self, direction: Direction) -> int:
        """Bytes that one checkpoint's call must read and write."""
        dense = self.codec.layout.checkpoint_bytes
        if direction == "pack":
            dense = Codec(self.codec.layout, self.codec.plan).nbytes
        return dense + self.codec.nbytes

    def turns(self, form: Form, direction: Direction, batch: int, calls: int) -> list[Callable[[], object]]:
        """Calls that go on to other slots and records each time, in random order."""
        slots, places = (torch.randperm(len(self.records)).to(self.records.device) for _ in range(2))
        slots += 1
        chosen = [
            (slots[at : at + batch], places[at : at + batch]) for at in range(0, len(self.records) - batch + 1, batch)
        ]
        if direction == "pack":
            return [partial(form.pack, some, self.records, there) for some, there in chosen[:calls]]
        return [partial(form.unpack, self.records, there, some) for some, there in chosen[:calls]]


def plain_copies(nbytes: int, count: int, device: str) -> list[Callable[[], object]]:
    """Calls that each read and write ``nbytes`` in all, up to a block, every one elsewhere."""
    # whole blocks of 16 KiB, so that the kernel needs no mask and every row is aligned
    length = -(-nbytes // 8 // 4096) * 4096
    source, target = (torch.zeros(count, length, dtype=torch.int32, device=device) for _ in range(2))
    if device == "cpu":
        return [partial(target[i].copy_, source[i]) for i in range(count)]
    from benchmarks.copy_kernel import copy

    return [partial(copy, source[i], target[i]) for i in range(count)]


def timer(calls: Sequence[Callable[[], object]], device: str) -> Callable[[], float]:
    """Something that runs the calls and returns milliseconds for one of them."""
    for call in calls:
        call()
    if device == "cpu":
        return partial(_host_ms, calls)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return partial(_graph_ms, graph, len(calls))


def _host_ms(calls: Sequence[Callable[[], object]]) -> float:
    start = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - start) * 1e3 / len(calls)


def _graph_ms(graph: torch.cuda.CUDAGraph, calls: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / calls


def measure(place: Workplace, form: Form, direction: Direction, batch: int, scale: Scale) -> Row:
    """Time one cell and the copy beside it."""
    device = place.pool.device.type
    turns = place.turns(form, direction, batch, scale.calls)
    moved = place.bytes_moved(direction) * batch
    arms = {"codec": timer(turns, device), "copy": timer(plain_copies(moved, len(turns), device), device)}
    label = f"{place.codec.name} {direction} {batch}"
    found = common.interleaved(label, arms, scale.repeats)
    ms, copy_ms = (common.percentile(found[arm], 50) for arm in ("codec", "copy"))
    return {
        "codec": place.codec.name,
        "direction": direction,
        "batch": batch,
        "bytes": moved,
        **common.spread(found["codec"], "ms"),
        "copy_ms": copy_ms,
        "floor_ms": moved / H200_BYTES_PER_S * 1e3 if device == "cuda" else None,
        "gbps": moved / ms / 1e6,
        "copy_gbps": moved / copy_ms / 1e6,
        "share": common.percentile(common.ratios(found["copy"], found["codec"]), 50),
    }


def cells(device: str, scale: Scale) -> Iterator[Row]:
    """Every shape, codec, direction and batch."""
    for shape in (KIMI_LINEAR, QWEN3_NEXT):
        for element in ELEMENTS:
            place = Workplace.build(Codec(shape.layout, shape.plan(), element=element), scale.slots, device)
            place.verify()
            form = place.codec.form(place.pool)
            for direction, batch in product(DIRECTIONS, scale.batches):
                yield {"shape": shape.name, "device": device} | measure(place, form, direction, batch, scale)


def sweep(scale: Scale) -> Iterator[Row]:
    """Tilings of the kernels against each other, on a GPU."""
    from holdover.codec.triton import Tiling, TritonForm

    tilings = [Tiling(elements, 2048, warps) for elements in (1024, 2048, 4096, 8192) for warps in (2, 4, 8)]
    for element in ELEMENTS:
        place = Workplace.build(Codec(KIMI_LINEAR.layout, KIMI_LINEAR.plan(), element=element), scale.slots, "cuda")
        for tiling in tilings:
            form = TritonForm(place.codec.record, place.pool, tiling)
            for direction, batch in product(DIRECTIONS, (1, 8)):
                row = measure(place, form, direction, batch, scale)
                yield {"shape": KIMI_LINEAR.name, "tiling": f"{tiling.elements}/{tiling.warps} warps"} | row


def show(title: str, rows: Sequence[Row]) -> None:
    columns = ["shape", "codec", "direction", "batch", "ms", "floor_ms", "gbps", "copy_gbps", "share"]
    columns += ["tiling"] if any("tiling" in row for row in rows) else []
    common.print_table(title, columns, [[_written(row.get(name)) for name in columns] for row in rows])


def _written(value: object) -> str:
    return common.number(value) if isinstance(value, float) else "" if value is None else str(value)


def main() -> int:
    parser = common.arguments("store", __doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--sweep", action="store_true", help="compare tilings of the kernels and write nothing")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    scale = SCALES[args.device, args.quick]
    if args.sweep:
        rows = sorted(sweep(scale), key=lambda row: (row["codec"], row["direction"], row["batch"], -row["share"]))
        show("Tilings, best first", rows)
        return 0
    rows = list(cells(args.device, scale))
    show("Packing and unpacking checkpoints", rows)
    if args.device == "cuda":
        met = sum(AIM.met(row["share"]) for row in rows)
        common.console.print(f"{met} of {len(rows)} cells have a share {AIM} of the copy's bandwidth")
    common.write_results(args.out, rows, "triton")
    return 0


if __name__ == "__main__":
    sys.exit(main())
