"""Bytes that decode kernels move to and from DRAM, by the GPU's own counters, beside what the traffic model expects.

    python benchmarks/decode_counters.py [--ops gdn,kda] [--batch 128]

Runs Nsight Compute (``ncu``) over one step of several layers for each view, and needs the right to read counters.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import common
from benchmarks.common import Row
from benchmarks.decode_arms import LAYERS, SHAPES, Arm, Cell, Shape, deferred_arm
from benchmarks.peers.fla import fla
from benchmarks.peers.peer import peer_arm
from holdover.ops.deferred import traffic

METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
# our step, and FLA's
KERNELS = "regex:step_kernel|fused_recurrent.*kernel"
MERGE_INTERVAL = 8
WARM = 2


@dataclass(frozen=True)
class View:
    """One phase of a method at one shape, as in DeltaLog's Figure 8.

    Attributes:
        method: as in result files.
        fill: entries that every log holds; None where there is no log.
    """

    method: str
    fill: int | None = None

    def arm(self, cell: Cell) -> Arm:
        if self.method == "fla":
            return peer_arm(cell, fla(cell.shape))
        if self.fill is None:
            return deferred_arm(cell, 1, method=self.method)
        return deferred_arm(cell, MERGE_INTERVAL, self.fill)

    def expected(self, shape: Shape, batch: int) -> traffic.Traffic:
        if self.fill is None:
            return traffic.dense(shape.layout(1), batch)
        return traffic.at_fill(shape.layout(MERGE_INTERVAL), batch, self.fill)


# an empty log, the last append before a fold, and the fold
FILLS = (0, MERGE_INTERVAL - 2, MERGE_INTERVAL - 1)
VIEWS = (View("fla"), View("holdover-dense"), *(View("holdover", fill) for fill in FILLS))


def views(op: str) -> tuple[View, ...]:
    """FLA has no kernel for Mamba-2."""
    return tuple(view for view in VIEWS if view.method != "fla" or op != "mamba2")


def drive(ops: Sequence[str], batch: int) -> None:
    """What ``ncu`` watches: every view of every operator, one step of all layers of each between start and stop."""
    for op in ops:
        cell = Cell.make(SHAPES[op], batch, span=0)
        for view in views(op):
            arm = view.arm(cell)
            for _ in range(WARM):
                arm.run()
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            arm.run()
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


def profile(ncu: str, ops: Sequence[str], batch: int) -> list[tuple[int, int]]:
    """Bytes read and written by every kernel that was watched, in order.

    Raises:
        RuntimeError: ``ncu`` refused or failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--log-file", f"{log}"]
        command += [
            "--metrics",
            ",".join(METRICS),
            "--kernel-name",
            KERNELS,
            "--profile-from-start",
            "off",
            "--target-processes",
            "all",
        ]
        # caches stay as they are: what a kernel leaves in them, its successor writes back, as in a model
        command += ["--clock-control", "none", "--cache-control", "none"]
        command += [sys.executable, "-m", "benchmarks.decode_counters", "--drive"]
        command += ["--ops", ",".join(ops), "--batch", f"{batch}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=common.ROOT)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        found = list(counted(text.splitlines()))
    if done.returncode or not found:
        last = [line for line in (text + done.stdout + done.stderr).splitlines() if line.strip()][-8:]
        raise RuntimeError("ncu gave no counters:\n  " + "\n  ".join(last))
    return found


def counted(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Both metrics of every row of ``ncu``'s raw page; its own messages and the row of units are passed over."""
    for row in csv.DictReader(line for line in lines if line.startswith('"')):
        if row["ID"]:
            read, written = (int(float(row[name].replace(",", ""))) for name in METRICS)
            yield read, written


def rows_of(op: str, batch: int, found: Sequence[Sequence[tuple[int, int]]]) -> Iterator[Row]:
    """A row for each view from its layers' counters, and one for a whole cycle of ours."""
    shape, measured = SHAPES[op], {}
    for view, layers in zip(views(op), found, strict=True):
        read, written = (common.percentile(column, 50) for column in zip(*layers, strict=True))
        expected = view.expected(shape, batch)
        measured[view.fill if view.method == "holdover" else view.method] = (read, written)
        interval = None if view.method == "fla" else 1 if view.fill is None else MERGE_INTERVAL
        yield {
            "op": op,
            "batch": batch,
            "method": view.method,
            "merge_interval": interval,
            "fill": view.fill,
            "dram_read": read,
            "dram_write": written,
            "model_read": expected.read,
            "model_written": expected.written,
        }
    # appends read more by the entry: their mean is that of the first and the last
    first, last, fold = (measured[fill] for fill in FILLS)
    appends = MERGE_INTERVAL - 1
    read, written = ((appends * (a + b) / 2 + c) / MERGE_INTERVAL for a, b, c in zip(first, last, fold, strict=True))
    cycle = traffic.deferred(shape.layout(MERGE_INTERVAL), batch)
    yield {
        "op": op,
        "batch": batch,
        "method": "holdover",
        "merge_interval": MERGE_INTERVAL,
        "fill": None,
        "dram_read": read,
        "dram_write": written,
        "model_read": cycle.read,
        "model_written": cycle.written,
    }


def print_rows(rows: Sequence[Row]) -> None:
    lines = []
    for row in rows:
        mixed = "cycle" if row["method"] == "holdover" else ""
        phase = mixed if row["fill"] is None else f"{row['fill']}"
        counts = [row[x] / 2**20 for x in ("dram_read", "model_read", "dram_write", "model_written")]
        lines.append([f"{row['op']} {row['method']}", phase, *(f"{x:.1f}" for x in counts)])
    columns = ["", "fill", "read", "model", "written", "model"]
    common.print_table("MiB to and from DRAM in one step of one layer", columns, lines)


def parse() -> argparse.Namespace:
    parser = common.arguments("decode_counters", __doc__)
    parser.add_argument("--ops", default=",".join(SHAPES), help="operators (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=128, help="sequences (default: %(default)s)")
    parser.add_argument("--drive", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    args = parse()
    ops = args.ops.split(",")
    if args.drive:
        drive(ops, args.batch)
        return 0
    ncu = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if ncu is None or not torch.cuda.is_available():
        print(f"decode_counters: no {'Nsight Compute (ncu)' if ncu is None else 'CUDA GPU'}", file=sys.stderr)
        return 2
    try:
        found = profile(ncu, ops, args.batch)
    except RuntimeError as reason:
        print(f"decode_counters: {reason}", file=sys.stderr)
        return 2
    wanted = [view for op in ops for view in views(op)]
    count = LAYERS.start
    if len(found) != count * len(wanted):
        print(f"decode_counters: {len(found)} kernels, want {count} for each of {len(wanted)} views", file=sys.stderr)
        return 1
    layers = iter([found[i : i + count] for i in range(0, len(found), count)])
    rows: list[Row] = []
    for op in ops:
        rows += rows_of(op, args.batch, [next(layers) for _ in views(op)])
    print_rows(rows)
    # a directory takes the file under its usual name
    out = args.out if args.out.suffix == ".json" else args.out / "decode_counters.json"
    common.write_results(out, rows, "triton", "flash-linear-attention")
    return 0


if __name__ == "__main__":
    sys.exit(main())
