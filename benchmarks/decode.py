"""One-token decode of recurrent states on a GPU: deferred and dense in-place steps against others and the floor.

    python benchmarks/decode.py [--quick] [--tune] [--ops gdn,kda] [--batches 128,512] [--budget SECONDS]

Every kernel is compared with the float64 definition before anything is timed. See notes/decode.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import common
from benchmarks.common import Row
from benchmarks.decode_arms import DEVICE, SHAPES, Arm, Budget, Cell, Graph, Shape, dense_definition, draw, release
from benchmarks.decode_methods import FULL, QUICK, Method, Scale, methods, warm
from benchmarks.decode_report import print_checks, print_main, print_sweeps
from benchmarks.decode_tune import tune
from benchmarks.peers.peer import WRONG
from holdover.ops.deferred import torch as plain
from holdover.ops.deferred import traffic
from holdover.ops.deferred import triton as deferred
from holdover.ops.deferred.log import Cursor

# packages that methods come from, for the file's `versions`
PACKAGES = ("triton", "flash-linear-attention", "vllm", "sglang")


def relative(got: Tensor, ref: Tensor) -> float:
    """``|got - ref| / |ref|``; NaN if anything is not finite."""
    return float((got.double() - ref).norm() / ref.norm())


def check(shape: Shape, scale: Scale) -> tuple[Row, bool]:
    """Roll out from mixed phases and verify drafts; errors against float64, and whether every one is in bounds."""
    layout, batch = shape.layout(8), scale.check_batch
    base = torch.randn(batch + 1, shape.heads, shape.d_k, shape.d_v, device=DEVICE)
    base[0] = torch.nan
    log = layout.allocate(batch + 1, DEVICE)
    for tensor in (log.keys, log.values, log.decays, log.scales):
        if tensor is not None:
            tensor.fill_(torch.nan)
    length = torch.zeros(batch + 1, dtype=torch.int32, device=DEVICE)
    cursor = Cursor(length, torch.full_like(length, layout.capacity))
    slots = torch.arange(1, batch + 1, device=DEVICE)

    def step(seed: int, active: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        arguments = draw(shape, (batch,), seed)
        out = deferred.step(base, log, cursor, active, layout.family.pack(*arguments))
        deferred.advance(cursor, active, layout.capacity)
        return arguments, out

    for t in range(layout.capacity):  # sequences join one after the other: the others are padding
        step(1000 + t, torch.where(slots % layout.merge_interval > t, slots, 0))
    mixed = len(length[1:].unique())
    state, definition = plain.logical(base, log, cursor, slots).double(), dense_definition(shape)
    errors = []
    for t in range(scale.check_tokens):
        arguments, out = step(t, slots)
        expected, state = definition(state, arguments)
        errors.append(relative(out, expected))
    state_error = relative(plain.logical(base, log, cursor, slots), state)

    drafts = draw(shape, (batch, 4), seed=5000)
    out = deferred.verify(base, log, cursor, slots, layout.family.pack(*drafts))
    deferred.advance(cursor, slots, layout.capacity, drafts=4)
    constant = {"mamba2": (2, 5), "rwkv6": (4,)}.get(layout.family.name, ())
    for t in range(4):
        expected, state = definition(state, tuple(x if i in constant else x[:, t] for i, x in enumerate(drafts)))
        errors.append(relative(out[:, t], expected))
    draft_error = relative(plain.logical(base, log, cursor, slots), state)

    clean = bool(base[0].isnan().all()) and mixed == layout.merge_interval
    worst = float(torch.tensor(errors).max())  # unlike Python's, this maximum keeps a NaN
    row = {"output": worst, "state": state_error, "state_after_drafts": draft_error, "phases": mixed}
    good = clean and all(x < WRONG for x in (worst, 10 * state_error, 10 * draft_error))
    return {"op": layout.family.name, "method": "check", **row}, good


@cache
def say(line: str) -> None:
    """Print a line, once in a run however many batch sizes it holds for."""
    common.console.print(line, markup=False, highlight=False)


def measure(cell: Cell, chosen: Iterable[Method], scale: Scale) -> list[Row]:
    """Time methods in turn; one row each. What is not installed, disagrees or does not fit is said and left out."""
    graphs: dict[str, Graph] = {}
    for i, method in enumerate(chosen):
        try:
            graphs[f"{i}"] = Graph(method.make(), cell.layers)
        except Exception as reason:  # whatever befalls one method must not cost the others their measurements
            say(f"{cell.shape.family.name} {method.name}: left out: {reason or type(reason).__name__}")
    label = f"{cell.shape.family.name} B={cell.batch}"
    turns = {name: (lambda graph=graph: graph.times(scale.replays)) for name, graph in graphs.items()}
    found = common.interleaved(label, turns, scale.rounds)
    rows = []
    for name, graph in graphs.items():
        times = [ms for turn in found[name] for ms in turn]
        rows.append(
            {
                "op": cell.shape.family.name,
                "batch": cell.batch,
                "method": graph.arm.method,
                **graph.arm.fields,
                **common.spread(times, "ms"),
                "p99": common.percentile(times, 99),
                "layers": cell.layers,
                "state_bytes": cell.state_bytes,
                **model_bytes(cell, graph.arm),
            }
        )
    return rows


def model_bytes(cell: Cell, arm: Arm) -> Row:
    """Bytes of state and log that the traffic model expects of a step; drafts share one read of the base."""
    if arm.method == "floor":
        return {"model_read": cell.state_bytes, "model_written": 0}
    # the staged form has the same log; what others keep is theirs
    if arm.method not in ("holdover", "holdover-dense", "staged"):
        return {}
    interval, fill = arm.fields["merge_interval"], arm.fields["fill"]
    layout = cell.shape.layout(interval)
    moved = traffic.deferred(layout, cell.batch) if fill is None else traffic.at_fill(layout, cell.batch, fill)
    return {"model_read": moved.read, "model_written": moved.written}


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(x) for x in text.split(","))


def main() -> int:
    parser = common.arguments("decode", __doc__)
    parser.add_argument("--ops", default=",".join(SHAPES), help="operators (default: %(default)s)")
    parser.add_argument("--batches", type=numbers, help="batch sizes")
    parser.add_argument("--budget", type=float, default=1800, help="seconds after which no new cell is started")
    parser.add_argument("--tune", action="store_true", help="search for block sizes instead of comparing methods")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("decode: no CUDA GPU", file=sys.stderr)
        return 2
    # a directory takes the file under its usual name
    out: Path = args.out if args.out.suffix == ".json" else args.out / "decode.json"
    scale, ops, budget = QUICK if args.quick else FULL, args.ops.split(","), Budget(args.budget)
    batches = args.batches or scale.batches

    if not args.tune:
        warm(ops, batches, scale)
    checked = [check(SHAPES[op], scale) for op in ops]
    rows = [row for row, _ in checked]
    print_checks(rows)
    release()
    if not all(good for _, good in checked):
        print("decode: a kernel is wrong, nothing was timed", file=sys.stderr)
        return 1
    if args.tune:
        rows += tune(ops, args.batches or (128, 512), budget)
        common.write_results(out.with_name("decode-tiling.json"), rows, "triton")
        return 0

    # large batches first: they are what the method is for
    for batch in sorted(batches, key=lambda b: (b not in scale.sweep, -b)):
        for op in ops:
            if budget.spent:
                common.console.print(f"no time left for {op} B={batch}")
                continue
            cell = Cell.make(SHAPES[op], batch)
            rows += measure(cell, methods(cell, scale), scale)
            del cell
            release()
            # kept after every cell: a run that is stopped has lost nothing
            common.write_results(out, rows, *PACKAGES)
    print_main(rows)
    print_sweeps(rows, scale)
    return 0


if __name__ == "__main__":
    sys.exit(main())
