"""Time from a published checkpoint's files to its retention plan: headers and decay tensors only, on local disk.

    python -m benchmarks.planning [--quick]

The files have Kimi-Linear's and Kimi-K3's configuration and decay tensors at full size under their published names;
what else a checkpoint holds is never read.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks import common
from benchmarks.common import Aim, Row
from holdover.retention.decay import read_decay
from holdover.retention.plan import RetentionPlan
from holdover.retention.plan_file import write_plan
from holdover.weights.source import open_files
from tests.retention.checkpoint import write_checkpoint

MODELS = ("kimi-linear-48b-a3b", "kimi-k3")
W_MAX = 64
AIM = Aim(5000.0, at_least=False)


def main() -> int:
    options = common.arguments("planning", __doc__).parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(Path(folder) / name, name, repeats=3 if options.quick else 10) for name in MODELS]
    cells = [[row["model"], f"{row['ms']:.0f}", f"{row['p10']:.0f} to {row['p90']:.0f}", row["aim"]] for row in rows]
    common.print_table("From files to a plan", ("model", "ms", "p10 to p90", "aim"), cells)
    common.write_results(options.out, rows, quick=options.quick)
    return 0


def measure(path: Path, model: str, repeats: int) -> Row:
    """One cell: milliseconds to read, decide and write."""
    write_checkpoint(path, model)

    def plan() -> float:
        start = time.perf_counter()
        write_plan(RetentionPlan.of(read_decay(open_files(str(path))), W_MAX), path / "plan.safetensors")
        return 1e3 * (time.perf_counter() - start)

    found = common.spread(common.interleaved(model, {"plan": plan}, repeats)["plan"], "ms")
    return {"model": model, "w_max": W_MAX, **found, "aim": f"{AIM} {'met' if AIM.met(found['ms']) else 'missed'}"}


if __name__ == "__main__":
    sys.exit(main())
