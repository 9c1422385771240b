"""Time per output token of the embedded engine on a GPU, with the log on and off, and with drafts.

    python benchmarks/decode_engine.py [--quick] [--layers N] [--batches 64,128] [--contexts 1024,4096]

Random weights of the recurrent shape of Qwen3.6-35B-A3B; a dense MLP as wide as its active experts stands for them.
See README.md beside this file for what is measured.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import common
from benchmarks.common import Row, percentile
from benchmarks.random_models import VOCABULARY, Letters, gdn_config, random_host
from holdover.engine.build import build_core
from holdover.engine.core import EngineCore
from holdover.engine.decode import GraphDecoder
from holdover.engine.hf.host import HostModel
from holdover.engine.options import EngineOptions
from holdover.engine.request import Request
from holdover.engine.residence import Residence
from holdover.engine.sampling import SamplingParams
from holdover.engine.sequence import Sequence as EngineSequence
from holdover.engine.text import TextStream
from holdover.prefix.policies import NoCheckpoints
from holdover.state import EXACT, KeyChain, SlotPool
from holdover.store import KVPool

NAMESPACE = b"benchmark"
MODEL = "qwen3.6-35b-a3b-shaped"
# kernels that advance the temporal state
UPDATES = ("step_kernel", "verify_kernel", "combine_kernel", "record_kernel", "fold_kernel", "advance_kernel")
MODES: dict[str, dict[str, Any]] = {
    "dense": {"decode": "dense"},
    "deferred": {"decode": "deferred"},
    "ngram": {"decode": "deferred", "speculate": "ngram"},
}


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        batches: sequences that decode together.
        contexts: tokens that each has behind it.
        warm_up: steps before anything is timed.
        steps: timed steps.
        layers: of the model.
    """

    batches: tuple[int, ...] = (64, 128, 256)
    contexts: tuple[int, ...] = (1024, 2048, 4096)
    warm_up: int = 20
    steps: int = 96
    layers: int = 40


QUICK = Scale(batches=(128,), contexts=(1024,), steps=48)


def build_host(layers: int) -> HostModel:
    return random_host(gdn_config(layers, hidden=2048, mlp=9 * 512, kv_heads=2))


def build_engine(host: HostModel, batch: int, context: int, steps: int, mode: str) -> EngineCore:
    layout, extra = host.layout, MODES[mode]
    interval = 16 if mode == "ngram" else 8 if mode == "deferred" else 1
    rows = batch * (context + 4 * steps)
    options = EngineOptions(
        dtype="bfloat16",
        max_running=batch,
        max_context=context + 4 * steps,
        state_budget=SlotPool.bytes_for(layout.state, 2 * batch, interval),
        kv_budget=KVPool.bytes_for(layout.kv, rows) + 4 * (batch + 1) * (context + 4 * steps),
        policy=NoCheckpoints(),
        **extra,
    )
    core, _ = build_core(host, options)
    return core


def start(core: EngineCore, batch: int, context: int, steps: int) -> None:
    """Queue sequences whose prefixes are in the cache: random rows and states, which cost what any others do."""
    kv, pool = core.cache.kv, core.cache.tiers.native.pool
    for layer in kv.layout.layers:
        for plane in kv.planes(layer.index):
            plane.normal_()
    residence, draw = Residence(core.cache), torch.Generator().manual_seed(0)
    for i in range(batch):
        tokens = torch.randint(VOCABULARY, (context + 1,), generator=draw).tolist()
        prefix = _sequence(f"prefix-{i}", tokens[:context], 1)
        residence.enter(prefix)
        residence.grow([prefix], context)
        slot = prefix.place.lease.slot
        for tensor in pool.tensors_of(slot):
            tensor.normal_(std=0.05)
        chain = KeyChain(NAMESPACE)
        chain.extend(tokens[:context])
        pool.adopt(slot, chain, EXACT)
        prefix.computed = context
        residence.leave(prefix, keep=True)
        core.add(_sequence(f"request-{i}", tokens, 4 * steps))


def _sequence(name: str, tokens: list[int], most: int) -> EngineSequence:
    params = SamplingParams(max_tokens=most, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, ignore_eos=True)
    request = Request(id=name, prompt=tuple(tokens), params=params)
    return EngineSequence(request, NAMESPACE, TextStream(Letters(), ()), frozenset(), most)


def measure(core: EngineCore, scale: Scale, batch: int) -> Row:
    """Step until the timed steps are done; milliseconds per output token of a sequence, and what the steps were."""
    for _ in range(scale.warm_up):
        core.step()
    assert core.num_running == batch, "not every sequence runs"
    assert core.stats.hit_tokens == core.stats.prompt_tokens - batch, "a sequence did not resume"
    decoder = core.runner.decoder
    assert isinstance(decoder, GraphDecoder)
    forwards, replays = sum(decoder.stats.forwards.values()), decoder.stats.replays
    generated = core.stats.decode_tokens
    times = []
    for _ in range(scale.steps):
        begin = time.perf_counter()
        core.step()
        times.append(1000 * (time.perf_counter() - begin))
    per_step = (core.stats.decode_tokens - generated) / scale.steps / batch
    tpot = [t / per_step for t in times]
    forwards = sum(decoder.stats.forwards.values()) - forwards
    row: Row = {
        "tpot_ms": sum(tpot) / len(tpot),
        "p10": percentile(tpot, 10),
        "p90": percentile(tpot, 90),
        "tpot_p99_ms": percentile(tpot, 99),
        "n": len(tpot),
        "replay_share": (decoder.stats.replays - replays) / forwards,
        "phases": decoder.stats.phases_max,
        "mixed_share": decoder.stats.mixed / sum(decoder.stats.forwards.values()),
    }
    if core.speculator is not None and core.speculator.stats.drafted:
        row["acceptance"] = core.speculator.stats.accepted / core.speculator.stats.drafted
        row["tokens_per_step"] = per_step
    return row | update_share(core)


def update_share(core: EngineCore, steps: int = 8) -> Row:
    """Share of the GPU's time that the state update takes, and that time per step, by the profiler."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(steps):
            core.step()
        torch.cuda.synchronize()
    kernels = {e.key: e.self_device_time_total / 1000 for e in profile.key_averages()}
    busy = sum(kernels.values())
    update = sum(ms for name, ms in kernels.items() if name.startswith(UPDATES))
    return {"update_share": update / busy, "update_ms": update / steps, "gpu_ms": busy / steps}


def run(scale: Scale) -> list[Row]:
    host, rows = build_host(scale.layers), []
    for context in scale.contexts:
        for batch in scale.batches:
            for mode in MODES:
                core = build_engine(host, batch, context, scale.steps + scale.warm_up, mode)
                start(core, batch, context, scale.steps + scale.warm_up)
                row = {"model": MODEL, "layers": scale.layers, "context": context, "batch": batch, "mode": mode}
                rows.append(row | measure(core, scale, batch))
                print(rows[-1], file=sys.stderr)
                for sequence in list(core._running):
                    core.abort(sequence.request.id)
                core.check_integrity()
                core.close()
                del core
                gc.collect()
                torch.cuda.empty_cache()
    return rows


def show(rows: Sequence[Row]) -> None:
    lines = []
    for row in rows:
        same = [r for r in rows if (r["context"], r["batch"]) == (row["context"], row["batch"])]
        dense = next(r for r in same if r["mode"] == "dense")
        lines.append(
            [
                f"{row['context']} x {row['batch']} {row['mode']}",
                common.number(row["tpot_ms"]),
                common.number(row["tpot_p99_ms"]),
                f"{dense['tpot_ms'] / row['tpot_ms']:.2f}",
                f"{100 * row['update_share']:.1f} %",
                common.number(row["update_ms"]),
                f"{100 * row['replay_share']:.1f} %",
                str(row["phases"]),
                f"{row['acceptance']:.2f}" if "acceptance" in row else "",
            ]
        )
    columns = ["context x batch", "TPOT, ms", "P99", "dense/this", "update", "ms", "replays", "phases", "accepted"]
    common.print_table(f"decode in the engine, {MODEL}", columns, lines)


def main() -> int:
    parser = common.arguments("decode_engine", __doc__)
    parser.add_argument("--layers", type=int, help="layers of the model, a multiple of 4")
    parser.add_argument("--batches", help="comma-separated")
    parser.add_argument("--contexts", help="comma-separated")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("this benchmark needs a CUDA GPU", file=sys.stderr)
        return 2
    base = QUICK if args.quick else Scale()
    scale = Scale(
        batches=tuple(map(int, args.batches.split(","))) if args.batches else base.batches,
        contexts=tuple(map(int, args.contexts.split(","))) if args.contexts else base.contexts,
        warm_up=base.warm_up,
        steps=base.steps,
        layers=args.layers or base.layers,
    )
    rows = run(scale)
    show(rows)
    common.write_results(args.out, rows, "triton", "flash-linear-attention")
    return 0


if __name__ == "__main__":
    sys.exit(main())
