"""Compare the embedded engine with plain Transformers on one machine, in one run, interleaved.

    python benchmarks/embedded.py [--quick] [--trace FILE] [--model NAME] [--port PORT]

See README.md beside this file for what each cell measures.
"""

from __future__ import annotations

import multiprocessing
import random
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import common
from benchmarks.arms import Answered, Answering, Arm, HoldoverArm, Timed, TransformersArm, holdover_engine
from benchmarks.common import Aim, Row
from benchmarks.stopwatch import Stopwatch, public_methods
from benchmarks.turns import long_conversations
from holdover import Engine
from holdover.engine.core import EngineCore
from holdover.engine.rows import RowTable
from holdover.errors import HoldoverError
from holdover.evaluation.traces import load_sharegpt
from holdover.evaluation.traces.exchanges import Exchange
from holdover.prefix import Hold, PrefixCache
from holdover.state import SlotPool
from holdover.store import KVPool, SlotAllocator, SlotLease
from holdover.weights.source import resolve

TRACE = Path(__file__).parent / "data" / "generated_trace.json"
# prompts that count as "about 2k tokens of history"
HISTORY = range(1536, 2561)

# what keeps the books; what hands the forward its tensors is the model's work
BOOKKEEPING = {
    PrefixCache: public_methods(PrefixCache),
    Hold: public_methods(Hold),
    SlotAllocator: public_methods(SlotAllocator),
    SlotLease: public_methods(SlotLease),
    SlotPool: public_methods(SlotPool, but=("temporal", "conv")),
    KVPool: public_methods(KVPool, but=("write", "planes", "layer")),
    RowTable: public_methods(RowTable),
}


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        prompts: prompt lengths of the prefill cells.
        repeats: rounds of the prefill and decode cells.
        steps: decode steps of one round.
        conversations: conversations replayed.
    """

    prompts: tuple[int, ...] = (512, 1024, 2048)
    repeats: int = 9
    steps: int = 64
    conversations: int = 10


QUICK = Scale(repeats=3, steps=24, conversations=1)
# unequal on purpose; Transformers pads them to the longest
BATCHES = {1: (256,), 8: tuple(range(64, 64 + 8 * 48, 48))}


class Prompts:
    """Random token ids, fresh for every call, so that nothing can be remembered.

    Args:
        vocabulary: ids are below this.
        avoid: ids that mean something to a model, left out.
    """

    def __init__(self, vocabulary: int, avoid: frozenset[int]) -> None:
        self._rng = random.Random(0)
        self._ids = [token for token in range(vocabulary) if token not in avoid]

    def __call__(self, length: int) -> list[int]:
        return self._rng.choices(self._ids, k=length)


def prefill(arms: dict[str, Arm], prompts: Prompts, scale: Scale) -> Iterator[Row]:
    """Prompt tokens a second, one sequence, from nothing to the first token."""
    agreed = []
    for length in scale.prompts:
        label = f"prefill of {length} tokens"
        runs = _in_turn(label, arms, prompts, [length], scale, lambda arm, batch: arm.first_token(batch[0]))
        agreed += [a.tokens == b.tokens for a, b in zip(*runs.values(), strict=True)]
        rates = {name: [length / timed.first for timed in found] for name, found in runs.items()}
        yield from _compared(f"prefill_{length}", "tokens/s", rates, Aim(2.0, at_least=True))
    yield {"engine": "holdover", "metric": "first_tokens_equal", "value": sum(agreed) / len(agreed), "n": len(agreed)}


def decode(arms: dict[str, Arm], prompts: Prompts, scale: Scale) -> Iterator[Row]:
    """Tokens a second once every prompt of the batch is computed."""
    for size, lengths in BATCHES.items():
        label = f"decode at batch {size}"
        runs = _in_turn(label, arms, prompts, lengths, scale, lambda arm, batch: arm.decode(batch, scale.steps))
        rates = {name: [timed.decode_rate for timed in found] for name, found in runs.items()}
        yield from _compared(f"decode_batch_{size}", "tokens/s", rates, Aim(1.5, at_least=True) if size > 1 else None)


def replay(arms: dict[str, Answering], conversations: Sequence[tuple[str, list[Exchange]]]) -> Iterator[Row]:
    """TTFT of later exchanges with about 2k tokens of history, and the time of whole conversations."""
    served: dict[str, list[list[Answered]]] = {name: [] for name in arms}
    with common.progress("replay of conversations", sum(len(found) for _, found in conversations)) as advance:
        for name, found in conversations:
            for answers in served.values():
                answers.append([])
            for exchange in found:
                for engine, arm in arms.items():
                    served[engine][-1].append(arm.answer(exchange, name))
                advance()
    places = [
        (i, j)
        for i, (_, found) in enumerate(conversations)
        for j, e in enumerate(found)
        if j and len(e.prompt) in HISTORY
    ]
    lengths = [float(len(conversations[i][1][j].prompt)) for i, j in places]
    first = {name: [1e3 * answers[i][j].first for i, j in places] for name, answers in served.items()}
    hits = [float(served["holdover"][i][j].hit) for i, j in places]
    new = [length - hit for length, hit in zip(lengths, hits, strict=True)]
    for metric, values in (("ttft_prompt_tokens", lengths), ("ttft_hit_depth", hits), ("ttft_new_tokens", new)):
        yield {"engine": "holdover", "metric": metric, "unit": "tokens", **common.spread(values)}
    for engine, values in first.items():
        p95 = common.percentile(values, 95)
        yield {"engine": engine, "metric": "ttft", "unit": "ms", **common.spread(values), "p95": p95}
    for base in list(arms)[1:]:
        each = common.ratios(first["holdover"], first[base])
        aim = Aim(0.15, at_least=False) if base == "holdover-nocache" else None
        yield _ratio("ttft_ratio", base, each, aim)
        worst = common.percentile(each, 95)
        yield _judged({"engine": "holdover", "metric": "ttft_ratio_p95", "base": base, "value": worst}, aim)
    for engine, answers in served.items():
        seconds = [sum(a.total for a in conversation) for conversation in answers]
        yield {"engine": engine, "metric": "conversation", "unit": "s", **common.spread(seconds)}


def bookkeeping(engine: Engine, prompts: Prompts, scale: Scale, conversation: list[Exchange]) -> Iterator[Row]:
    """Share of the engine's steps that is spent on slots, rows and the tree, the copies of state included."""
    aim = Aim(0.02, at_least=False)
    arm = HoldoverArm(engine, use_cache=True)
    with common.progress("bookkeeping", len(conversation) + 1) as advance:
        with _measured() as share:
            for exchange in conversation:
                arm.answer(exchange, "bookkeeping")
                advance()
        yield _judged({"engine": "holdover", "metric": "bookkeeping_share_replay", "value": share[0]}, aim)
        with _measured() as share:
            arm.decode([prompts(length) for length in BATCHES[8]], scale.steps)
        advance()
        yield _judged({"engine": "holdover", "metric": "bookkeeping_share_batch_8", "value": share[0]}, aim)


def memory(engine: Engine, model: str, threads: int) -> Iterator[Row]:
    """Bytes of the pools, and what a process of each engine takes at its peak above the loaded model."""
    pools = engine.core.runner
    yield {"engine": "holdover", "metric": "state_pool", "unit": "bytes", "value": pools.slots.nbytes}
    yield {"engine": "holdover", "metric": "kv_pool", "unit": "bytes", "value": pools.kv.nbytes}
    names = ("holdover", "transformers")
    with common.progress("peak memory", len(names)) as advance:
        for name in names:
            # a process of its own: a peak is that of a process, and never goes down
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                loaded, peak = pool.submit(_peak_memory, name, model, threads).result()
            advance()
            yield {"engine": name, "metric": "memory_loaded", "unit": "bytes", "value": loaded}
            yield {"engine": name, "metric": "memory_peak", "unit": "bytes", "value": peak}


def run(model: str, trace: Path, scale: Scale, threads: int, port: int | None) -> list[Row]:
    """All cells."""
    torch.set_num_threads(threads)
    engine = holdover_engine(model)
    fresh = HoldoverArm(engine, use_cache=False)
    # an instance of its own: Holdover changes the one that it loads
    plain = TransformersArm(str(resolve(model).path))
    prompts = Prompts(engine.loaded.host.layout.vocab_size, engine.loaded.end_tokens)
    found = long_conversations(load_sharegpt(trace), engine.loaded, engine.prepare.max_context, HISTORY)
    conversations = [conversation for conversation, _ in zip(found, range(scale.conversations), strict=False)]
    if not conversations:
        raise HoldoverError(f"{trace} has no conversation with {HISTORY.start} to {HISTORY.stop - 1} tokens of history")
    pair: dict[str, Arm] = {"holdover": fresh, "transformers": plain}
    # from the beginning: a port that cannot be had is said at once
    with cached_arm(engine, model, port) as cached:
        rows = [*prefill(pair, prompts, scale), *decode(pair, prompts, scale)]
        rows += replay({"holdover": cached, "holdover-nocache": fresh, "transformers": plain}, conversations)
    rows += bookkeeping(engine, prompts, scale, conversations[0][1])
    rows += memory(engine, model, threads)
    return rows


@contextmanager
def cached_arm(engine: Engine, model: str, port: int | None) -> Iterator[Answering]:
    """The engine with its cache; at a port, another one that a server has too.

    Raises:
        HoldoverError: the port cannot be had.
    """
    if port is None:
        yield HoldoverArm(engine, use_cache=True)
        return
    # not above: processes whose memory is measured import this file
    from benchmarks.served import served

    with served(holdover_engine(model), model, port) as arm:
        yield arm


def show(rows: Sequence[Row]) -> None:
    """Print every row."""
    lines = [
        (
            row["metric"],
            row["engine"] + (f" / {row['base']}" if "base" in row else ""),
            _written(row, "value"),
            *(_written(row, name) for name in ("p10", "p90", "p95")),
            row.get("unit", ""),
            row.get("aim", ""),
            ("yes" if row["met"] else "NO") if "met" in row else "",
        )
        for row in rows
    ]
    common.print_table(
        "Embedded engine (median of interleaved runs)",
        ("metric", "engine", "value", "p10", "p90", "p95", "unit", "aim", "met"),
        lines,
    )


def main() -> int:
    parser = common.arguments("embedded", __doc__)
    parser.add_argument("--model", default="tiny-gdn", help="bundled model or directory (default: %(default)s)")
    parser.add_argument("--trace", type=Path, default=TRACE, help="ShareGPT JSON (default: %(default)s)")
    parser.add_argument("--port", type=int, help="let `holdover cache` reach the replay's cache at this port")
    options = parser.parse_args()
    try:
        rows = run(options.model, options.trace, QUICK if options.quick else Scale(), options.threads, options.port)
    except HoldoverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    show(rows)
    about = {"model": options.model, "trace": options.trace.name, "quick": options.quick}
    common.write_results(options.out, rows, **about, served=options.port is not None)
    return 0


def _in_turn(
    label: str,
    arms: dict[str, Arm],
    prompts: Prompts,
    lengths: Sequence[int],
    scale: Scale,
    run: Callable[[Arm, list[list[int]]], Timed],
) -> dict[str, list[Timed]]:
    """Run every arm on the same batches, a fresh one each round."""
    warmup = 1
    batches = [[prompts(length) for length in lengths] for _ in range(warmup + scale.repeats)]

    def rounds(arm: Arm) -> Callable[[], Timed]:
        left = iter(batches)
        return lambda: run(arm, next(left))

    return common.interleaved(label, {name: rounds(arm) for name, arm in arms.items()}, scale.repeats, warmup)


def _compared(metric: str, unit: str, values: dict[str, list[float]], aim: Aim | None) -> Iterator[Row]:
    for engine, found in values.items():
        yield {"engine": engine, "metric": metric, "unit": unit, **common.spread(found)}
    ours, base = values
    yield _ratio(f"{metric}_ratio", base, common.ratios(values[ours], values[base]), aim)


def _ratio(metric: str, base: str, values: Sequence[float], aim: Aim | None) -> Row:
    return _judged({"engine": "holdover", "metric": metric, "base": base, **common.spread(values)}, aim)


def _judged(row: Row, aim: Aim | None) -> Row:
    return row if aim is None else row | {"aim": str(aim), "met": aim.met(row["value"])}


@contextmanager
def _measured() -> Iterator[list[float]]:
    """Share of the engine's steps within the block that is bookkeeping; in the list once the block ends."""
    steps, books = Stopwatch(), Stopwatch()
    share: list[float] = []
    with steps.watching({EngineCore: ["step"]}), books.watching(BOOKKEEPING):
        yield share
    share.append(books.seconds / steps.seconds)


def _peak_memory(name: str, model: str, threads: int) -> tuple[int, int]:
    torch.set_num_threads(threads)
    if name == "holdover":
        engine = holdover_engine(model)
        arm: Arm = HoldoverArm(engine, use_cache=False)
    else:
        arm = TransformersArm(str(resolve(model).path))
    loaded = _peak()
    vocabulary = 256
    arm.first_token([i % vocabulary for i in range(2048)])
    arm.decode([[i % vocabulary for i in range(length)] for length in BATCHES[8]], 8)
    return loaded, _peak()


def _peak() -> int:
    try:
        # what `getrusage` reports on Linux includes the parent's memory from before the program was replaced
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _written(row: Row, name: str) -> str:
    value = row.get(name)
    if value is None:
        return ""
    if row.get("unit") == "bytes":
        return f"{value / 2**20:,.0f} Mi"
    return common.number(value)


if __name__ == "__main__":
    sys.exit(main())
