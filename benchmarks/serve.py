"""Serve one frozen trace with dense, NR and WR checkpoints, each server within the same state budget.

    python benchmarks/serve.py [--quick] [--trace FILE] [--model NAME] [--wmax N] [--budget BYTES]

See README.md beside this file for what each row says. Runs on a CPU or a GPU; servers run one after the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import common
from benchmarks.common import Row
from holdover.cli.serve import listen
from holdover.engine.hf.tokenizer import Tokenizer
from holdover.errors import HoldoverError
from holdover.evaluation.traces.build import PRESETS, Preset, build_trace
from holdover.evaluation.traces.sources import open_recordings
from holdover.evaluation.traces.trace import write_trace
from holdover.weights.source import resolve

TRACE = Path(__file__).parent / "data" / "article_trace.json"
QUICK = Preset("quick", conversations=6, turns=3, shortest=256, longest=1024, context=2048, reply=24)
# what a server needs to load its model
_PATIENCE = 300
_MEAN = ("ttft_mean_ms", "ttft_p95_ms", "e2e_mean_ms", "e2e_p95_ms", "hit")


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        preset: of the trace.
        seeds: runs of each arm.
        clients: conversations under way at a time.
        server_limit: requests that a server runs together.
    """

    preset: Preset
    seeds: tuple[int, ...]
    clients: int
    server_limit: int


SCALES = {False: Scale(PRESETS["small"], (1, 2, 3, 4, 5), 16, 4), True: Scale(QUICK, (1,), 6, 2)}


def arms(plan: Path) -> dict[str, list[str]]:
    """Flags of each server: they differ in how checkpoints are kept, and in nothing else."""
    packed = ["--plan", str(plan), "--element", "full"]
    return {"dense": [], "nr": [*packed, "--refresh", "none"], "wr": [*packed, "--refresh", "suffix"]}


@contextmanager
def serving(model: str, flags: Sequence[str]) -> Iterator[str]:
    """A server in a process of its own, until the block ends; yields its address."""
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "holdover", "serve", model, "--port", str(port), *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        # its last lines say where it is ready
        if not any(line.startswith("ready at") for line in lines):
            raise HoldoverError(f"the server ended with status {process.wait(_PATIENCE)}: {' '.join(command)}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=_PATIENCE)


def measured(url: str, trace: Path, arm: str, scale: Scale, folder: Path) -> list[Row]:
    """Rows of one arm, one for each run."""
    output = folder / f"{arm}.json"
    command = [sys.executable, "-m", "holdover", "bench", "serve", url, "--trace", str(trace), "--arm", arm]
    command += ["--clients", str(scale.clients), "--server-limit", str(scale.server_limit), "-o", str(output)]
    if subprocess.run(command, check=False).returncode:
        raise HoldoverError(f"arm {arm} was not measured to its end")
    rows: list[Row] = json.loads(output.read_text(encoding="utf-8"))["rows"]
    return rows


def run(model: str, source: Path, w_max: int, budget: str, scale: Scale, threads: int) -> tuple[list[Row], str]:
    """Rows of all arms, and the digest of the trace that all of them were asked for."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = Tokenizer(resolve(model).path)
        frozen = build_trace(
            open_recordings(source),
            scale.preset,
            tokenizer,
            tokenizer.end_tokens,
            model=model,
            source=source.name,
            seeds=scale.seeds,
        )
        write_trace(frozen, trace := folder / "trace.jsonl")
        plan = folder / "plan.safetensors"
        made = [sys.executable, "-m", "holdover", "plan", model, "--wmax", str(w_max), "-o", str(plan)]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        shared = ["--state-budget", budget, "--max-running", str(scale.server_limit), "--threads", str(threads)]
        rows: list[Row] = []
        for arm, flags in arms(plan).items():
            with serving(model, [*shared, *flags]) as url:
                found = measured(url, trace, arm, scale, folder)
            fixed = {"placement": "off", "w_max": None if arm == "dense" else w_max, "state_budget": budget}
            rows += [row | fixed for row in found]
        return rows, frozen.digest


def show(rows: Sequence[Row]) -> None:
    """Print each arm's means over its runs."""
    lines = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        means = [sum(row[name] for row in own) / len(own) for name in _MEAN]
        lines.append((arm, str(own[0]["slots"]), *map(common.number, means)))
    columns = ("arm", "slots", "TTFT ms", "P95", "E2E ms", "P95", "hit")
    common.print_table("Serving at one state budget (means over runs)", columns, lines)


def main() -> int:
    parser = common.arguments("serve", __doc__)
    parser.add_argument("--model", default="tiny-gdn", help="bundled model or directory (default: %(default)s)")
    parser.add_argument("--trace", type=Path, default=TRACE, help="recorded conversations (default: %(default)s)")
    parser.add_argument("--wmax", type=int, default=64, help="retention cutoff in tokens (default: %(default)s)")
    parser.add_argument("--budget", default="12MiB", help="state of every server (default: %(default)s)")
    options = parser.parse_args()
    scale = SCALES[options.quick]
    try:
        rows, digest = run(options.model, options.trace, options.wmax, options.budget, scale, options.threads)
    except (HoldoverError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    show(rows)
    common.write_results(options.out, rows, model=options.model, trace=digest, quick=options.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
