"""Decode attention on a GPU: Triton's kernels against torch's gather and attention, and the bytes that must be read.

    python benchmarks/attention.py [--quick] [--tune] [--ops gqa-256,mla] [--batches 16,64] [--budget SECONDS]

One new token of every sequence, all of one length, rows scattered over the pool. The kernels are compared with torch
before anything is timed. One CUDA graph holds as many layers as it takes to read more than any cache holds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import common
from benchmarks.common import Row
from benchmarks.decode_arms import Arm, Budget, Graph, read_kernel, release
from holdover.ops.attention import triton as attention
from holdover.ops.attention.kernels.tiling import Shapes, Tiling, choose, padded

ITEM = 2  # bytes of bf16
# bytes of KV behind one graph
SPAN = 1 << 29
LAYERS = range(2, 65)
# share of the GPU's memory that pools and what torch gathers from one layer may take
SHARE = 0.7
# beyond this a kernel is wrong, not imprecise: bf16 rounds weights and outputs
WRONG = 2e-2


@dataclass(frozen=True)
class Shape:
    """Attention of one layer; with ``rope`` it is latent attention of ``width`` latents, keys being values."""

    heads: int
    kv_heads: int
    width: int
    rope: int = 0
    nope: int = 0

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values."""
        return ITEM * self.kv_heads * (self.width + self.rope if self.rope else 2 * self.width)

    def tiling(self, batch: int, context: int) -> Tiling:
        columns = self.width + (padded(self.rope) if self.rope else 0)
        return choose(
            Shapes(
                batch, self.kv_heads, self.heads // self.kv_heads, context, columns, self.width, bool(self.rope), ITEM
            )
        )


SHAPES = {
    "gqa-256": Shape(16, 2, 256),
    "gqa-128": Shape(32, 8, 128),
    "mla": Shape(32, 1, 512, rope=64, nope=128),
}


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    rounds: int
    replays: int


FULL = Scale((1, 16, 64, 128, 256), (1024, 2048, 4096, 32768), 5, 10)
QUICK = Scale((1, 64, 256), (1024, 4096), 3, 5)


@dataclass
class Cell:
    """Layers of B sequences of one length. All layers share the table, as in an engine."""

    shape: Shape
    batch: int
    context: int
    planes: list[tuple[Tensor, Tensor]]
    q: Tensor
    weights: tuple[Tensor, Tensor]
    places: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def make(cls, shape: Shape, batch: int, context: int) -> Cell | None:
        """None where the planes do not fit."""
        kv_bytes = batch * context * shape.token_bytes
        layers = min(max(SPAN // kv_bytes, LAYERS.start), LAYERS.stop - 1)
        # torch reads a copy, twice as wide in its attention over latents
        if (layers + 3) * kv_bytes > SHARE * torch.cuda.get_device_properties(0).total_memory:
            return None
        rows = batch * context + 1  # row 0 is the pool's sink
        second = shape.rope or shape.width
        planes = [
            (_random(rows, shape.kv_heads, shape.width), _random(rows, shape.kv_heads, second)) for _ in range(layers)
        ]
        table = (torch.randperm(rows - 1, device="cuda") + 1).to(torch.int32).view(batch, context)
        lengths = torch.full((batch,), context, dtype=torch.int32, device="cuda")
        q = _random(batch, 1, shape.heads, shape.nope + shape.rope if shape.rope else shape.width)
        w_k, w_v = (_random(shape.heads, shape.nope, shape.width) / math.sqrt(shape.width) for _ in range(2))
        return cls(shape, batch, context, planes, q, (w_k, w_v), (table, torch.arange(batch, device="cuda"), lengths))

    @property
    def kv_bytes(self) -> int:
        """What a step of one layer must read."""
        return self.batch * self.context * self.shape.token_bytes

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.q.shape[-1])

    def ours(self, layer: int, tiling: Tiling | None = None) -> Tensor:
        first, second = self.planes[layer]
        if not self.shape.rope:
            return attention.paged_attention(self.q, first, second, *self.places, self.scale, tiling=tiling)
        q_nope, q_rope = self.q.split([self.shape.nope, self.shape.rope], dim=-1)
        return attention.paged_latent_attention(
            q_nope, q_rope, first, second, *self.places, *self.weights, self.scale, tiling
        )

    def gathered(self, layer: int, batch: int | None = None) -> Tensor:
        """Gather the first sequences' rows, all if None, then torch's attention; latents are absorbed here, too."""
        table = self.places[0][:batch]
        first, second = (plane[table].transpose(1, 2) for plane in self.planes[layer])  # [B, Hkv, L, D]
        q = self.q[:batch].transpose(1, 2)  # [B, Hq, 1, D]
        if not self.shape.rope:
            out = F.scaled_dot_product_attention(q, first, second, scale=self.scale, enable_gqa=True)
            return out.transpose(1, 2)
        w_k, w_v = self.weights
        q_nope, q_rope = q[:, :, 0].split([self.shape.nope, self.shape.rope], dim=-1)
        absorbed = torch.cat([torch.einsum("bhn,hnc->bhc", q_nope, w_k), q_rope], dim=-1).unsqueeze(1)
        # all query heads are queries of the one KV head
        keys = torch.cat([first, second], dim=-1)
        mixed = F.scaled_dot_product_attention(absorbed, keys, first, scale=self.scale)
        return torch.einsum("bhc,hdc->bhd", mixed[:, 0], w_v).unsqueeze(1)


def _random(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_()


def each_layer(cell: Cell, run: Callable[[int], object]) -> Callable[[], None]:
    def step() -> None:
        for layer in range(len(cell.planes)):
            run(layer)

    return step


def ours_arm(cell: Cell, tiling: Tiling | None = None, method: str = "holdover") -> Arm:
    shown = vars(tiling or cell.shape.tiling(cell.batch, cell.context))
    return Arm(method, each_layer(cell, lambda layer: cell.ours(layer, tiling)), dict(shown))


def torch_arm(cell: Cell) -> Arm:
    return Arm("torch", each_layer(cell, cell.gathered), {})


def floor_arm(cell: Cell, block: int = 8192) -> Arm:
    """Read both planes once, in order."""
    programs = [plane[1:].numel() // (block * 2) for plane in cell.planes[0]]
    out = torch.empty(max(programs), device="cuda")

    def run(layer: int) -> None:
        for plane, count in zip(cell.planes[layer], programs, strict=True):
            # pairs of bf16 as one fp32: only the bytes matter
            read_kernel[(count,)](plane.view(torch.float32), out, block, num_warps=8)

    return Arm("floor", each_layer(cell, run), {})


def tunings(cell: Cell) -> Iterator[Arm]:
    """The chosen tiling and its neighbours."""
    chosen = cell.shape.tiling(cell.batch, cell.context)
    for block, warps, stages, factor in product((32, 64), (4, 8), (3, 5, 7), (0.5, 1, 2)):
        parts = max(1, min(128, round(chosen.parts * factor)))
        yield ours_arm(cell, replace(chosen, block=block, warps=warps, stages=stages, parts=parts), "tuning")


def measure(name: str, cell: Cell, arms: Sequence[Arm], scale: Scale) -> list[Row]:
    """Time arms in turn; one row each. A method that does not fit is said and left out."""
    label = f"{name} B={cell.batch} L={cell.context}"
    graphs: list[Graph] = []
    for arm in arms:
        try:
            graphs.append(Graph(arm, len(cell.planes)))
        except Exception as reason:  # one method's failure must not cost the others their measurements
            common.console.print(f"{label} {arm.method} {arm.fields}: left out: {str(reason).splitlines()[0]}")
    turns = {f"{i}": (lambda graph=graph: graph.times(scale.replays)) for i, graph in enumerate(graphs)}
    found = common.interleaved(label, turns, scale.rounds)
    rows = []
    for graph, taken in zip(graphs, found.values(), strict=True):
        times = common.spread([ms for turn in taken for ms in turn], "ms")
        rows.append(
            {
                "op": name,
                "batch": cell.batch,
                "context": cell.context,
                "method": graph.arm.method,
                **graph.arm.fields,
                **times,
                "gbps": cell.kv_bytes / times["ms"] / 1e6,
                "layers": len(cell.planes),
                "kv_bytes": cell.kv_bytes,
            }
        )
    return rows


def error(cell: Cell, batch: int = 4) -> float:
    """``|ours - torch| / |torch|`` for the first sequences; NaN if anything is not finite."""
    got, ref = cell.ours(0)[:batch], cell.gathered(0, batch).double()
    return float((got.double() - ref).norm() / ref.norm())


def print_main(rows: Sequence[Row]) -> None:
    cells: dict[tuple[str, int, int], dict[str, Row]] = {}
    for row in rows:
        cells.setdefault((row["op"], row["batch"], row["context"]), {})[row["method"]] = row
    lines = []
    for (op, batch, context), cell in cells.items():
        ms = [cell[x]["ms"] if x in cell else None for x in ("floor", "torch", "holdover")]
        floor, gathered, ours = ms
        gbps = common.number(cell["holdover"]["gbps"]) if ours else "-"
        against = ["-" if not (a and b) else f"{a / b:.2f}" for a, b in ((gathered, ours), (ours, floor))]
        lines.append([f"{op} {batch} {context}", *("-" if x is None else f"{x:.4f}" for x in ms), gbps, *against])
    columns = ["op B L", "bytes floor", "torch", "ours", "ours GB/s", "torch/ours", "ours/floor"]
    common.print_table("ms for attention of one layer", columns, lines)


def print_tuning(rows: Sequence[Row]) -> None:
    """The five fastest tilings of each cell beside the chosen one."""
    keys = ("block", "rows", "parts", "warps", "stages")
    for label in dict.fromkeys((row["op"], row["batch"], row["context"]) for row in rows):
        tried = [row for row in rows if (row["op"], row["batch"], row["context"]) == label and "block" in row]
        chosen = [row for row in tried if row["method"] == "holdover"]
        for row in chosen + sorted((row for row in tried if row not in chosen), key=lambda row: row["ms"])[:5]:
            shown = " ".join(f"{key}={row[key]}" for key in keys)
            common.console.print(f"{label} {row['method']:<9} {shown}: {row['ms']:.4f}", highlight=False)


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(x) for x in text.split(","))


def main() -> int:
    parser = common.arguments("attention", __doc__)
    parser.add_argument("--ops", default=",".join(SHAPES), help="shapes (default: %(default)s)")
    parser.add_argument("--batches", type=numbers, help="batch sizes")
    parser.add_argument("--contexts", type=numbers, help="lengths")
    parser.add_argument("--budget", type=float, default=1200, help="seconds after which no new cell is started")
    parser.add_argument("--tune", action="store_true", help="search for block sizes, too")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("attention: no CUDA GPU", file=sys.stderr)
        return 2
    # a directory takes the file under its usual name
    out: Path = args.out if args.out.suffix == ".json" else args.out / "attention.json"
    scale, budget, rows = QUICK if args.quick else FULL, Budget(args.budget), []
    cells = product(args.ops.split(","), args.contexts or scale.contexts, args.batches or scale.batches)
    for name, context, batch in cells:
        if budget.spent:
            common.console.print(f"no time left for {name} B={batch} L={context}")
            continue
        cell = Cell.make(SHAPES[name], batch, context)
        if cell is None:
            common.console.print(f"{name} B={batch} L={context}: does not fit")
            continue
        off = error(cell)
        if not off < WRONG:
            print(f"attention: {name} B={batch} L={context} is off by {off:.1e}", file=sys.stderr)
            return 1
        arms = [floor_arm(cell), torch_arm(cell), ours_arm(cell), *(tunings(cell) if args.tune else [])]
        rows += [{**row, "error": off} for row in measure(name, cell, arms, scale)]
        del cell, arms
        release()
        # kept after every cell: a run that is stopped has lost nothing
        common.write_results(out.with_name("attention-tiling.json") if args.tune else out, rows, "triton")
    print_main(rows)
    print_tuning(rows if args.tune else [])
    return 0


if __name__ == "__main__":
    sys.exit(main())
