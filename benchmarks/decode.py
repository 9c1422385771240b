"""One-token decode of recurrent states on a GPU: deferred and dense in-place steps against others and the floor.

    python benchmarks/decode.py [--quick] [--tune] [--ops gdn,kda] [--batches 128,512] [--budget SECONDS]

Every kernel is compared with the float64 definition before anything is timed. See notes/decode.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import common
from benchmarks.common import Row
from benchmarks.decode_arms import (
    SHAPES,
    Arm,
    Budget,
    Cell,
    Graph,
    Shape,
    compiled_arm,
    deferred_arm,
    dense_definition,
    draw,
    fla_arm,
    fla_step,
    floor_arm,
    release,
    verify_arm,
)
from benchmarks.decode_tune import tune
from holdover.ops.deferred import torch as plain
from holdover.ops.deferred import traffic
from holdover.ops.deferred import triton as deferred
from holdover.ops.deferred.log import Cursor

# DeltaLog's own errors (Section 5.5), which a method must not exceed
OUTPUT_LIMIT = 4.6e-3
STATE_LIMIT = {"kda": 5e-4}
OTHER_STATE_LIMIT = 1e-6
# beyond this a kernel is wrong, not imprecise
WRONG = 1e-2


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        batches: B of the main table.
        sweep: B at which merge intervals, fills and drafts are varied.
        intervals: M of the sweep.
        drafts: T of the verification table.
        rounds: turns that the arms of a cell take.
        replays: timed graph replays of one turn.
        check_tokens: length of the rollouts that are compared with float64.
        check_batch: B of those.
    """

    batches: tuple[int, ...]
    sweep: tuple[int, ...]
    intervals: tuple[int, ...]
    drafts: tuple[int, ...]
    rounds: int
    replays: int
    check_tokens: int
    check_batch: int


FULL = Scale(
    (1, 4, 16, 64, 128, 256, 512, 1024), (128, 512), (2, 3, 4, 6, 8, 12, 16, 32, 64), (2, 4, 8), 5, 20, 128, 64
)
QUICK = Scale((16, 128, 512), (128,), (4, 8, 16), (4,), 3, 10, 32, 16)


def relative(got: Tensor, ref: Tensor) -> float:
    """``|got - ref| / |ref|``; NaN if anything is not finite."""
    return float((got.double() - ref).norm() / ref.norm())


def check(shape: Shape, scale: Scale) -> tuple[Row, bool]:
    """Roll out from mixed phases and verify drafts; errors against float64, and whether every one is in bounds."""
    layout, batch = shape.layout(8), scale.check_batch
    base = torch.randn(batch + 1, shape.heads, shape.d_k, shape.d_v, device="cuda")
    base[0] = torch.nan
    log = layout.allocate(batch + 1, "cuda")
    for tensor in (log.keys, log.values, log.decays, log.scales):
        if tensor is not None:
            tensor.fill_(torch.nan)
    length = torch.zeros(batch + 1, dtype=torch.int32, device="cuda")
    cursor = Cursor(length, torch.full_like(length, layout.capacity))
    slots = torch.arange(1, batch + 1, device="cuda")

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


def check_fla(cell: Cell) -> float:
    """Largest of the errors of FLA's outputs and states: it must compute what we do to be compared with."""
    small = Cell.make(cell.shape, 4, span=0)
    states, arguments = small.bases[0][1:], small.arguments[0]
    out, state = fla_step(cell.shape)(states, arguments)
    expected, dense = dense_definition(cell.shape)(states.double(), arguments)
    return float(torch.tensor([relative(out, expected), relative(state, dense)]).max())


def baselines(cell: Cell, compiled: bool) -> Iterator[Arm]:
    """The floor and the methods that are not ours; what is not there is said and left out."""
    yield floor_arm(cell)
    try:
        error = check_fla(cell)
        if not error < WRONG:
            raise LookupError(f"its result is off by {error:.1e}")
        yield fla_arm(cell)
    except Exception as reason:  # another project's kernel may fail in any way; the run goes on without it
        common.console.print(f"{cell.shape.family.name}: no comparison with FLA: {reason}")
    if compiled:
        yield compiled_arm(cell)


def measure(cell: Cell, arms: Sequence[Arm], scale: Scale) -> list[Row]:
    """Time arms in turn; one row each. A method that does not fit is said and left out."""
    graphs: dict[str, Graph] = {}
    for i, arm in enumerate(arms):
        try:
            graphs[f"{i}"] = Graph(arm, cell.layers)
        except Exception as reason:  # one method's failure must not cost the others their measurements
            common.console.print(f"{cell.shape.family.name} B={cell.batch} {arm.method}: left out: {reason}")
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
    interval, fill = arm.fields["merge_interval"], arm.fields["fill"]
    if arm.method == "floor":
        return {"model_read": cell.state_bytes, "model_written": 0}
    layout = cell.shape.layout(interval or 1)
    if "drafts" in arm.fields or interval is None:
        return {}
    moved = traffic.deferred(layout, cell.batch) if fill is None else traffic.at_fill(layout, cell.batch, fill)
    return {"model_read": moved.read, "model_written": moved.written}


def arms_of(cell: Cell, scale: Scale, compiled: bool) -> Iterator[Arm]:
    """Every method at one operator and batch size; more of our own where M, fill and drafts are varied."""
    yield from baselines(cell, compiled)
    yield deferred_arm(cell, 1, method="holdover-dense")
    best = traffic.best_interval(cell.shape.layout(1))
    swept = scale.intervals if cell.batch in scale.sweep else ()
    for interval in sorted({4, 8, best, *swept}):
        yield deferred_arm(cell, interval)
    if cell.batch in scale.sweep:
        for fill in (0, 3, 6, 7):
            yield deferred_arm(cell, 8, fill)
        for drafts in scale.drafts:
            yield verify_arm(cell, drafts, merge_interval=16)


def print_checks(rows: Sequence[Row]) -> None:
    lines = []
    for row in rows:
        limit = STATE_LIMIT.get(row["op"], OTHER_STATE_LIMIT)
        met = row["output"] <= OUTPUT_LIMIT and max(row["state"], row["state_after_drafts"]) <= limit
        errors = [f"{row[x]:.1e}" for x in ("output", "state", "state_after_drafts")]
        lines.append([row["op"], *errors, f"{OUTPUT_LIMIT:g}, {limit:g}", "yes" if met else "NO"])
    common.print_table("Relative error against float64", ["op", "output", "state", "+ drafts", "aim", "met"], lines)


def print_main(rows: Sequence[Row]) -> None:
    """A line for each operator and batch: the best M against everything else, and against what bytes allow."""
    lines = []
    for (op, batch), cell in grouped(rows).items():
        ours = [x for x in cell if x["method"] == "holdover" and x["fill"] is None]
        if not ours:
            continue
        best = min(ours, key=lambda x: x["ms"])
        floor, dense, fla, compiled = (one(cell, x) for x in ("floor", "holdover-dense", "fla", "torch-compile"))
        # the read-once kernel's rate, applied to every byte that the method must move
        bound = floor and floor * (best["model_read"] + best["model_written"]) / best["state_bytes"]
        cells = [floor, compiled, fla, dense, best["ms"], best["p99"]]
        against = [fla and fla / best["ms"], dense and dense / best["ms"], bound and best["ms"] / bound]
        lines.append([f"{op} {batch}", *map(milliseconds, cells), str(best["merge_interval"]), *map(factor, against)])
    columns = ["op B", "floor", "compile", "fla", "dense", "ours", "p99", "M", "fla/ours", "dense/ours", "ours/bytes"]
    common.print_table("ms for one step of one layer", columns, lines)


def print_sweeps(rows: Sequence[Row], scale: Scale) -> None:
    """Merge intervals, fills and drafts at the sweep's batch sizes."""
    for (op, batch), cell in grouped(rows).items():
        if batch not in scale.sweep:
            continue
        mixed = [x for x in cell if x["method"] == "holdover" and x["fill"] is None]
        fills = [x for x in cell if x["method"] == "holdover" and x["fill"] is not None]
        drafts = [x for x in cell if x["method"] == "holdover-verify"]
        parts = [
            " ".join(f"M={x['merge_interval']}:{x['ms']:.4f}" for x in mixed),
            "M=8 at " + " ".join(f"fill {x['fill']}:{x['ms']:.4f}" for x in fills),
            "M=16 " + " ".join(f"T={x['drafts']}:{x['ms']:.4f}" for x in drafts),
        ]
        common.console.print(f"{op} B={batch}  " + "\n    ".join(parts), highlight=False)


def grouped(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    cells: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if "batch" in row:
            cells.setdefault((row["op"], row["batch"]), []).append(row)
    return cells


def one(cell: Sequence[Row], method: str) -> float | None:
    return next((row["ms"] for row in cell if row["method"] == method), None)


def milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def factor(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(x) for x in text.split(","))


def main() -> int:
    parser = common.arguments("decode", __doc__)
    parser.add_argument("--ops", default=",".join(SHAPES), help="operators (default: %(default)s)")
    parser.add_argument("--batches", type=numbers, help="batch sizes")
    parser.add_argument("--budget", type=float, default=1800, help="seconds after which no new cell is started")
    parser.add_argument("--compile", action="store_true", help="time torch.compile of the definition, too")
    parser.add_argument("--tune", action="store_true", help="search for block sizes instead of comparing methods")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("decode: no CUDA GPU", file=sys.stderr)
        return 2
    # a directory takes the file under its usual name
    out: Path = args.out if args.out.suffix == ".json" else args.out / "decode.json"
    scale, ops, budget = QUICK if args.quick else FULL, args.ops.split(","), Budget(args.budget)
    batches = args.batches or scale.batches

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
            rows += measure(cell, list(arms_of(cell, scale, args.compile)), scale)
            del cell
            release()
            # kept after every cell: a run that is stopped has lost nothing
            common.write_results(out, rows, "triton", "flash-linear-attention")
    print_main(rows)
    print_sweeps(rows, scale)
    return 0


if __name__ == "__main__":
    sys.exit(main())
