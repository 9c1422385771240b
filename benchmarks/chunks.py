"""Time to the first token over reused chunks, beside a full prefill of the same tokens, in one run, interleaved.

    python benchmarks/chunks.py [--quick] [--layers N] [--models a,b] [--contexts 8192,32768] [--seconds S]

Random weights of published shapes on a GPU, the bundled tiny-gdn on a CPU. See README.md beside this file.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import common
from benchmarks.chunk_arms import Asked, Prompt, build, composed, engine_for, full, host_bytes, paired, prompts_of
from benchmarks.chunk_models import SHAPES, TINY, bundled_model, random_model
from benchmarks.common import Aim, Row
from holdover import Engine
from holdover.chunks.selectors.seam import Seam
from holdover.engine.hf.loader import Loaded

RATIO = 0.2
PAIRED = ("none", "epic", "seam", "cacheblend", "prophetkv")
INITIALISERS = ("last", "exact")
RATIOS = (0.03, 0.05, 0.1, 0.2, 0.4)
WINDOWS = (4, 16, 64, 128)


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        models: which.
        contexts: tokens of a prompt and its first token.
        repeats: rounds of each group of arms.
        sweeps: whether ratios and seam windows are swept, at the middle context.
        most_s: seconds after which no further group is begun.
        aim: of ``last`` against a full prefill, at the longest context.
    """

    models: tuple[str, ...]
    contexts: tuple[int, ...]
    repeats: int
    sweeps: bool
    most_s: float
    aim: Aim


GPU = Scale(tuple(SHAPES), (8192, 16384, 32768), 5, True, 400, Aim(0.40, at_least=False))
GPU_QUICK = Scale((next(iter(SHAPES)),), (8192, 32768), 3, False, 75, GPU.aim)
CPU = Scale((TINY,), (1024, 2048, 4096), 9, True, 1500, Aim(0.45, at_least=False))
CPU_QUICK = Scale((TINY,), (1024, 4096), 3, False, 300, CPU.aim)


@dataclass(frozen=True)
class Arm:
    """One way to compose. ``row`` says which in the results."""

    row: Row
    run: Callable[[], Asked]


def pairs(engine: Engine, prompts: Sequence[Prompt]) -> list[Arm]:
    """Every selector with both initialisers, each pair on one selection."""
    arms = []
    for selector in PAIRED:
        shared = paired(selector)
        for initialiser in INITIALISERS:
            row = {"selector": selector, "initialiser": initialiser, "ratio": RATIO}
            arms.append(Arm(row, composed(engine, prompts, shared, initialiser, RATIO)))
    return arms


def sweeps(engine: Engine, prompts: Sequence[Prompt]) -> list[Arm]:
    """``last`` over ratios, and over windows around the seams."""
    chosen: list[tuple[Row, Any, float]] = [({"selector": "epic", "ratio": r}, "epic", r) for r in RATIOS]
    chosen += [({"selector": "seam", "window": w, "ratio": None}, Seam(w), RATIO) for w in WINDOWS]
    return [Arm({"initialiser": "last"} | row, composed(engine, prompts, s, "last", r)) for row, s, r in chosen]


def of_a_kind(engine: Engine, prompts: Sequence[Prompt]) -> list[Arm]:
    """The default way alone."""
    row = {"selector": "epic", "initialiser": "last", "ratio": RATIO}
    return [Arm(row, composed(engine, prompts, "epic", "last", RATIO))]


def measure(label: str, engine: Engine, prompts: Sequence[Prompt], arms: Sequence[Arm], repeats: int) -> Iterator[Row]:
    """Run the arms and a full prefill of the same tokens in turn."""
    runs = {"full": full(engine, prompts)} | {str(i): arm.run for i, arm in enumerate(arms)}
    found = common.interleaved(label, runs, repeats)
    whole = [_last(asked) for asked in found["full"]]
    base = common.spread(whole, "full_ms")
    for i, arm in enumerate(arms):
        asked = found[str(i)]
        times = [_last(one) for one in asked]
        share = common.percentile(common.ratios(times, whole), 50)
        usage = asked[0].usage
        assert usage is not None
        yield {
            **arm.row,
            "batch": len(prompts),
            **common.spread(times, "ttft_ms"),
            "full_ms": base["full_ms"],
            "full_p10": base["p10"],
            "full_p90": base["p90"],
            "share": share,
            **usage._asdict(),
        }


def groups(loaded: Loaded, scale: Scale, context: int) -> Iterator[Callable[[], list[Row]]]:
    """What is measured at one context, in order of importance; each group has an engine of its own."""

    def group(
        label: str, arms: Callable[[Engine, list[Prompt]], list[Arm]], batch: int = 1, residence: str = "device"
    ) -> list[Row]:
        budget = host_bytes(loaded, context) if residence == "host" else None
        engine = engine_for(loaded, context, batch, transitions=arms is pairs, host_budget=budget)
        prompts = prompts_of(context, batch, loaded.host.layout.vocab_size)
        build(engine, prompts[0])
        name = f"{context} {label}"
        try:
            return [
                {"model": loaded.name, "context": context, "residence": residence} | row
                for row in measure(name, engine, prompts, arms(engine, prompts), scale.repeats)
            ]
        finally:
            engine.core.check_integrity()
            engine.close()

    yield lambda: group("pairs", pairs)
    yield lambda: group("host memory", of_a_kind, residence="host")
    yield lambda: group("batch of 4", of_a_kind, batch=4)
    if scale.sweeps and context == scale.contexts[len(scale.contexts) // 2]:
        yield lambda: group("sweeps", sweeps)


def run(scale: Scale, layers: int | None) -> list[Row]:
    """All groups of all models, as far as the time allows."""
    rows: list[Row] = []
    end = time.monotonic() + scale.most_s
    for name in scale.models:
        loaded = bundled_model() if name == TINY else random_model(name, layers)
        # the longest context first: that is where the aims are
        for context in sorted(scale.contexts, reverse=True):
            for group in groups(loaded, scale, context):
                if time.monotonic() > end:
                    print(f"left out of {name} at {context}: the time is over", file=sys.stderr)
                    continue
                rows += group()
                gc.collect()
                torch.cuda.empty_cache()
        del loaded
        gc.collect()
    return [judged(row, rows, scale) for row in rows]


def judged(row: Row, rows: Sequence[Row], scale: Scale) -> Row:
    """A row of ``last`` with what it should be: a share of a full prefill, and no slower than its ``exact`` twin."""
    if row["initialiser"] != "last" or row["ratio"] != RATIO:
        return row
    cell = ("model", "context", "selector", "ratio", "batch", "residence")
    twin = next((r for r in rows if r["initialiser"] == "exact" and all(r[k] == row[k] for k in cell)), None)
    if twin is not None:
        row = row | {"not_slower_than_exact": row["ttft_ms"] <= twin["p90"]}
    if row["context"] == max(scale.contexts) and row["residence"] == "device":
        row = row | {"aim": str(scale.aim), "met": scale.aim.met(row["share"])}
    return row


def show(rows: Sequence[Row]) -> None:
    """Print every row, a table for each model."""
    columns = ["context, selector, initialiser", "r", "in", "batch", "TTFT, ms", "p90", "full, ms"]
    columns += ["share", "run again", "aim", "met", "≤ exact"]
    for model in dict.fromkeys(row["model"] for row in rows):
        lines = [_line(row) for row in rows if row["model"] == model]
        common.print_table(f"Time to the first token over reused chunks, {model}", columns, lines)


def _line(row: Row) -> list[str]:
    verdict = {True: "yes", False: "NO", None: ""}
    return [
        f"{row['context']} {row['selector']}{_window(row)} {row['initialiser']}",
        "" if row["ratio"] is None else f"{row['ratio']:g}",
        row["residence"],
        str(row["batch"]),
        *(common.number(row[name]) for name in ("ttft_ms", "p90", "full_ms")),
        f"{row['share']:.2f}",
        str(row["recomputed"]),
        row.get("aim", ""),
        verdict[row.get("met")],
        verdict[row.get("not_slower_than_exact")],
    ]


def main() -> int:
    parser = common.arguments("chunks", __doc__)
    parser.add_argument("--layers", type=int, help="layers of the models on a GPU: a multiple of 4, at least 8")
    parser.add_argument("--models", help=f"comma-separated, of {', '.join(SHAPES)}")
    parser.add_argument("--contexts", help="comma-separated")
    parser.add_argument("--seconds", type=float, help="after which no further group of arms is begun")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    on_gpu = torch.cuda.is_available()
    base = (GPU_QUICK if args.quick else GPU) if on_gpu else (CPU_QUICK if args.quick else CPU)
    scale = Scale(
        models=tuple(args.models.split(",")) if args.models else base.models,
        contexts=tuple(map(int, args.contexts.split(","))) if args.contexts else base.contexts,
        repeats=base.repeats,
        sweeps=base.sweeps,
        most_s=args.seconds or base.most_s,
        aim=base.aim,
    )
    rows = run(scale, args.layers)
    show(rows)
    common.write_results(args.out, rows, "triton", "flash-linear-attention", quick=args.quick)
    return 0


def _last(asked: Asked) -> float:
    """Milliseconds until the last of a batch has its first token."""
    return max(asked.ms)


def _window(row: Row) -> str:
    return f"({row['window']})" if "window" in row else ""


if __name__ == "__main__":
    sys.exit(main())
