"""What `decode.py` times: one decode step of several layers in a CUDA graph, by every method that can do it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdover.ops.deferred import triton as deferred
from holdover.ops.deferred.family import FAMILIES, Family
from holdover.ops.deferred.log import Cursor, Log, LogLayout
from holdover.ops.deferred.tiling import Tiling

# bytes of state behind one graph: far more than any cache, so that every step comes from memory, as in a model whose
# other layers lie between two steps of one
SPAN = 1 << 29
LAYERS = range(4, 65)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Shape:
    """A family's heads; all states here have equally many bytes."""

    family: Family
    heads: int
    key_heads: int
    d_k: int
    d_v: int

    def layout(self, merge_interval: int) -> LogLayout:
        return LogLayout(self.family, self.heads, self.key_heads, self.d_k, self.d_v, merge_interval)


SHAPES = {
    "gdn": Shape(FAMILIES["gdn"], 32, 32, 128, 128),
    "kda": Shape(FAMILIES["kda"], 32, 32, 128, 128),
    "rwkv6": Shape(FAMILIES["rwkv6"], 32, 32, 128, 128),
    "mamba2": Shape(FAMILIES["mamba2"], 64, 1, 128, 64),
}


def draw(shape: Shape, lead: tuple[int, ...], seed: int = 0) -> tuple[Tensor, ...]:
    """Arguments of the family's dense step: bf16 activations, fp32 gates, half-lives from one to 1e5 tokens."""
    g = torch.Generator(DEVICE).manual_seed(seed)
    normal = partial(torch.randn, generator=g, device=DEVICE)
    uniform = partial(torch.rand, generator=g, device=DEVICE)
    key = (*lead, shape.key_heads, shape.d_k)
    q, k, v = normal(key).bfloat16(), normal(key).bfloat16(), normal(*lead, shape.heads, shape.d_v).bfloat16()
    rates = -0.7 / torch.logspace(0, 5, shape.heads, device=DEVICE)
    if shape.family.per_key:
        rates = -0.7 / torch.logspace(0, 5, shape.heads * shape.d_k, device=DEVICE).view(shape.heads, shape.d_k)
    log_decay = rates * (0.5 + uniform(*lead, *rates.shape))
    if shape.family.name == "mamba2":
        return v, 0.5 + uniform(*lead, shape.heads), rates, k, q, normal(shape.heads)
    if shape.family.name == "rwkv6":
        return q, k, v, log_decay, normal(shape.heads, shape.d_k)
    return q, k, v, log_decay, uniform(*lead, shape.heads)


def dense_definition(shape: Shape) -> Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, Tensor]]:
    """The definition for one token: ``(states, arguments) -> (outputs, new states)`` in the states' dtype."""
    name = shape.family.name
    recurrence = import_module(f"holdover.ops.recurrence.{name}.naive").recurrence
    constant = {"mamba2": (2, 5), "rwkv6": (4,)}.get(name, ())

    def step(states: Tensor, arguments: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        out, state = recurrence(states, *(x if i in constant else x.unsqueeze(1) for i, x in enumerate(arguments)))
        return out.squeeze(1), state

    return step


@dataclass
class Cell:
    """Layers of B sequences each, and one token for each layer; slot 0 is the sink."""

    shape: Shape
    batch: int
    layers: int
    bases: list[Tensor]
    arguments: list[tuple[Tensor, ...]]
    slots: Tensor

    @classmethod
    def make(cls, shape: Shape, batch: int, span: int = SPAN) -> Cell:
        state = 4 * shape.heads * shape.d_k * shape.d_v
        layers = min(max(span // (batch * state), LAYERS.start), LAYERS.stop - 1)
        bases = torch.randn(layers, batch + 1, shape.heads, shape.d_k, shape.d_v, device=DEVICE).unbind()
        arguments = [draw(shape, (batch,), seed=i) for i in range(layers)]
        return cls(shape, batch, layers, list(bases), arguments, torch.arange(1, batch + 1, device=DEVICE))

    @property
    def state_bytes(self) -> int:
        return 4 * self.batch * self.shape.heads * self.shape.d_k * self.shape.d_v


@dataclass(frozen=True)
class Arm:
    """A method: ``run`` advances every layer by ``tokens``, and says in ``fields`` what is particular about it."""

    method: str
    run: Callable[[], None]
    fields: dict[str, Any]


def phases(batch: int, merge_interval: int, fill: int | None) -> Cursor:
    """Lengths all at ``fill``, or spread over a cycle; a full log folds."""
    length = torch.zeros(batch + 1, dtype=torch.int32, device=DEVICE)
    length[1:] = torch.arange(batch, device=DEVICE) % merge_interval if fill is None else fill
    return Cursor(length, torch.full_like(length, merge_interval - 1))


def logs(cell: Cell, layout: LogLayout) -> list[Log]:
    """Full logs, as after many steps."""
    made = [layout.allocate(cell.batch + 1, DEVICE) for _ in range(cell.layers)]
    for log in made:
        log.keys.normal_()
        log.values.normal_()
        # decays since the fold deepen with every entry
        entry = torch.arange(1, layout.capacity + 1, device=DEVICE)
        log.decays.copy_(-1e-3 * (entry.unsqueeze(-1) if layout.family.per_key else entry))
        if log.scales is not None:
            log.scales.fill_(0.09)
    return made


def deferred_arm(
    cell: Cell, merge_interval: int, fill: int | None = None, tiling: Tiling | None = None, method: str = "holdover"
) -> Arm:
    """Our step. With ``fill`` the lengths stay there: every step appends at it, or folds where the log is full."""
    layout = cell.shape.layout(merge_interval)
    cursor, of_layer = phases(cell.batch, merge_interval, fill), logs(cell, layout)
    packed = [layout.family.pack(*x) for x in cell.arguments]

    def run() -> None:
        for base, log, inputs in zip(cell.bases, of_layer, packed, strict=True):
            deferred.step(base, log, cursor, cell.slots, inputs, tiling)
        if fill is None:
            deferred.advance(cursor, cell.slots, layout.capacity)

    return Arm(method, run, {"merge_interval": merge_interval, "fill": fill})


def verify_arm(cell: Cell, drafts: int, merge_interval: int) -> Arm:
    """Our verification, every draft accepted, so that folds come as often as they can."""
    layout = cell.shape.layout(merge_interval)
    cursor, of_layer = phases(cell.batch, merge_interval, None), logs(cell, layout)
    packed = [layout.family.pack(*draw(cell.shape, (cell.batch, drafts), seed=i)) for i in range(cell.layers)]

    def run() -> None:
        for base, log, inputs in zip(cell.bases, of_layer, packed, strict=True):
            deferred.verify(base, log, cursor, cell.slots, inputs)
        deferred.advance(cursor, cell.slots, layout.capacity, drafts=drafts)

    return Arm("holdover-verify", run, {"merge_interval": merge_interval, "fill": None, "drafts": drafts})


@triton.jit
def read_kernel(x, out, block: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    tile = tl.load(x + program * block + tl.arange(0, block))
    tl.store(out + program, tl.sum(tile, axis=0))


def floor_arm(cell: Cell, block: int = 8192) -> Arm:
    """Read every state once: what no method that keeps a dense base can be faster than."""
    programs = cell.state_bytes // 4 // block
    out = torch.empty(programs, device=DEVICE)

    def run() -> None:
        for base in cell.bases:
            read_kernel[(programs,)](base[1:], out, block, num_warps=8)

    return Arm("floor", run, {"merge_interval": None, "fill": None})


@dataclass
class Graph:
    """One captured run of an arm over all layers of a cell."""

    arm: Arm
    layers: int

    def __post_init__(self) -> None:
        # compiles, and brings allocations to where they stay
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.arm.run()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.arm.run()

    def times(self, replays: int) -> list[float]:
        """Milliseconds of one step of one layer, for each replay."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
        self.graph.replay()
        events[0].record()
        for event in events[1:]:
            self.graph.replay()
            event.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) / self.layers for a, b in pairwise(events)]


class Budget:
    """Seconds in which new cells may still be started."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    @property
    def spent(self) -> bool:
        return time.monotonic() > self.end


def release() -> None:
    """Give graphs' and cells' memory back before the next one is made."""
    gc.collect()
    torch.cuda.empty_cache()
