"""vLLM on a GPU with deferred decode against vLLM without it, in engines that share the GPU and take turns.

    python -m benchmarks vllm_gpu [--quick] [--batches 64 128 256] [--intervals 8]

For each number of sequences, the time of all kernels of a decode step (`kernel_ms`) and the time per output token
(`tpot_ms`), CUDA graphs and compilation on. The model is a dense one of Qwen3.6-35B-A3B's recurrent shape with random
weights, so nothing is downloaded. Where the recurrence takes the share s of stock vLLM's step and the deferred one is k
times as fast, the step can become 1/(1 - s + s/k) times as fast (`bound`); `reached` is what it became over that.
It was run with vLLM 0.26 (torch 2.11), and is written for 0.32 as well.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import Aim, Row
from benchmarks.vllm_gpu_model import write_config
from benchmarks.vllm_gpu_tokens import compare
from benchmarks.vllm_process import EngineProcess

STOCK = "stock"
AIM = Aim(0.9, at_least=True)
# what DeltaLog gains end to end on its H200 (Table 4), by number of sequences
PAPER = {64: 1.08, 128: 1.14, 256: 1.20}
PROMPTS, LENGTH = 8, 64
SHOWN = (
    *("mode", "batch", "kernel_ms", "update_share", "kernel_ratio", "speedup", "bound", "reached"),
    *("tpot_ms", "tpot_speedup"),
)


def main() -> int:
    parser = common.arguments("vllm_gpu", __doc__)
    _add_flags(parser)
    options = parser.parse_args()
    batches = options.batches[:1] if options.quick else options.batches
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        model = Path(options.model or folder)
        write_config(model)
        engines = _engines(options, model, batches)
        for engine in engines.values():
            stack.callback(engine.close)
        rows: list[Row] = []
        kernels: dict[str, Row] = {}
        for batch in batches:
            times, kernels[str(batch)] = _measured(engines, batch, repeats=2 if options.quick else options.repeats)
            rows += _rows(batch, times, kernels[str(batch)])
            # what is known by now is kept should a later batch fail
            _write(options, rows, {"kernels": kernels})
        tokens = _tokens(engines, max(batches[0], PROMPTS))
        folds = {name: engine.ask("folds") for name, engine in engines.items() if name != STOCK}
    _write(options, rows, {"tokens": tokens, "folds": folds, "kernels": kernels})
    common.print_table("vLLM", SHOWN, [[common.shown(row.get(name)) for name in SHOWN] for row in rows])
    common.print_table("greedy tokens", list(tokens[0]), [list(map(common.shown, row.values())) for row in tokens])
    return 0


def _engines(options: Namespace, model: Path, batches: list[int]) -> dict[str, EngineProcess]:
    settings: dict[str, Row] = {STOCK: {}}
    settings |= {f"deferred-{m}": {"decode": {"interval": m}} for m in options.intervals}
    engines = {}
    for name, ours in settings.items():
        # two that compile the same graphs would write the same files
        apart = {"VLLM_CACHE_ROOT": str(options.cache / name)} if options.cache else {}
        engines[name] = EngineProcess("benchmarks.vllm_gpu_arm", str(model), ours, batches, environment=apart)
    return engines


def _measured(
    engines: dict[str, EngineProcess], batch: int, repeats: int
) -> tuple[dict[str, list[float]], dict[str, Row]]:
    """Times per output token in ms, and what the profiler saw, by engine."""
    arms: dict[str, Callable[[], float]] = {n: partial(engine.ask, "tpot", batch) for n, engine in engines.items()}
    times = common.interleaved(f"batch {batch}", arms, repeats)
    return times, {name: engine.ask("kernels", batch) for name, engine in engines.items()}


def _rows(batch: int, times: dict[str, list[float]], kernels: dict[str, Row]) -> list[Row]:
    rows = []
    for name, seen in kernels.items():
        own = {column: value for column, value in seen.items() if column != "kernels"}
        row = {"mode": name, "batch": batch} | own | {"update_share": own["update_ms"] / own["kernel_ms"]}
        row |= {"tpot_min": min(times[name]), **common.spread(times[name], "tpot_ms")}
        if name != STOCK:
            row |= gain(kernels[STOCK], own, times[STOCK], times[name]) | {"paper": PAPER.get(batch)}
        rows.append(row)
    return rows


def gain(stock: Row, own: Row, stock_times: list[float], times: list[float]) -> Row:
    """What a step and a token gained, and what the recurrence's kernels allow: by Amdahl's law, from one run.

    Args:
        stock: ``kernel_ms`` and ``update_ms`` of stock vLLM.
        own: those of the other engine.
        stock_times: stock vLLM's times per output token, in ms.
        times: the other engine's, measured in turn with them.
    """
    share, ratio = stock["update_ms"] / stock["kernel_ms"], stock["update_ms"] / own["update_ms"]
    bound, speedup = 1 / (1 - share + share / ratio), stock["kernel_ms"] / own["kernel_ms"]
    return {
        "kernel_ratio": ratio,
        "speedup": speedup,
        "bound": bound,
        "reached": speedup / bound,
        "aim": str(AIM),
        "met": AIM.met(speedup / bound),
        "tpot_speedup": common.percentile(common.ratios(stock_times, times), 50),
        "tpot_min_speedup": min(stock_times) / min(times),
    }


def _tokens(engines: dict[str, EngineProcess], batch: int) -> list[Row]:
    """Against stock vLLM, and stock vLLM against itself in a smaller batch: what rounding alone does."""
    stock = engines[STOCK].ask("tokens", batch, PROMPTS, LENGTH)
    others = {f"stock, batch {PROMPTS}": engines[STOCK].ask("tokens", PROMPTS, PROMPTS, LENGTH)}
    others |= {name: engine.ask("tokens", batch, PROMPTS, LENGTH) for name, engine in engines.items() if name != STOCK}
    against = f"stock, batch {batch}"
    return [{"mode": name, "against": against} | compare(stock, other) for name, other in others.items()]


def _write(options: Namespace, rows: list[Row], extra: dict[str, Any]) -> None:
    common.write_results(options.out, rows, "vllm", "triton", quick=options.quick, **extra)


def _add_flags(parser: ArgumentParser) -> None:
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 128, 256], help="numbers of sequences")
    parser.add_argument("--intervals", type=int, nargs="+", default=[8], help="merge intervals, up to 16")
    parser.add_argument("--repeats", type=int, default=5, help="of each time per output token (default: %(default)s)")
    parser.add_argument("--model", help="folder to write the model's configuration to (default: a temporary one)")
    parser.add_argument("--cache", type=Path, help="folder for what engines compile (default: vLLM's own)")


if __name__ == "__main__":
    sys.exit(main())
