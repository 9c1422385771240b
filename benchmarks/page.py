"""What an open page costs: the processor's time for its answers, and decode steps with and without them, interleaved.

    python benchmarks/page.py [--quick] [--model NAME]

The server's whole answer is made in this process, as it is in a server; only the socket is left out. Steps vary from
run to run by more than the aim, which is therefore judged by the answers' own time, that of all threads together.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import torch
from fastapi import FastAPI

from benchmarks import common
from benchmarks.common import Aim, Row
from holdover import AsyncEngine, Engine, SamplingParams
from holdover.engine.core import EngineCore
from holdover.engine.hf.loader import load
from holdover.engine.options import EngineOptions
from holdover.errors import HoldoverError
from holdover.server.app import create_app
from holdover.server.status import Look
from holdover.weights.bundled import DEFAULT_MODEL

BATCH = 8
PROMPT = 16
# a page asks once a second, however many are open
PERIOD = 1.0
AIM = Aim(0.01, at_least=False)
# answers in a row whose time is one sample
ANSWERS = 20


def main() -> int:
    parser = common.arguments("page", __doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="name, directory or hub id (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    counts = (100,) if options.quick else (100, 1000)
    try:
        rows = [measure(options.model, count, repeats=3 if options.quick else 8) for count in counts]
    except HoldoverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    show(rows)
    common.write_results(options.out, rows, quick=options.quick)
    return 0


def measure(model: str, checkpoints: int, repeats: int) -> Row:
    """One cell: a step's time in both arms, their ratio, and how long one answer occupies the engine's thread."""
    with serving(model, checkpoints) as (engine, app), asyncio.Runner() as runner:
        arms = {
            "alone": lambda: runner.run(step_ms(engine, app, polled=False)),
            "polled": lambda: runner.run(step_ms(engine, app, polled=True)),
        }
        found = common.interleaved(f"{checkpoints} checkpoints", arms, repeats)
        looks = [runner.run(look_ms(engine)) for _ in range(repeats)]
        answers = [runner.run(answer_ms(app)) for _ in range(repeats)]
        entries = runner.run(engine.call(Look.at)).total
    ratio = common.spread(common.ratios(found["polled"], found["alone"]), "ratio")
    # the server looks once a period and answers from that: answers in a row share a look
    share = (common.percentile(looks, 50) + common.percentile(answers, 50)) / 1e3 / PERIOD
    return {
        "checkpoints": entries,
        "alone_ms": common.percentile(found["alone"], 50),
        "polled_ms": common.percentile(found["polled"], 50),
        **ratio,
        "look_ms": common.percentile(looks, 50),
        "answer_ms": common.percentile(answers, 50),
        "share": share,
        "aim": str(AIM),
        "met": AIM.met(share),
    }


@contextmanager
def serving(model: str, checkpoints: int) -> Iterator[tuple[AsyncEngine, FastAPI]]:
    """A server's parts, its cache full of short prefixes."""
    loaded = load(model)
    slot = loaded.host.layout.state.checkpoint_bytes
    # decode logs lie beside the states: twice a state is more than both
    budget = 2 * slot * (checkpoints + 2 * BATCH)
    filled = Engine(loaded, EngineOptions(state_budget=budget, max_running=BATCH))
    draw = random.Random(0)
    vocab = loaded.host.layout.vocab_size
    prompts = [[draw.randrange(vocab) for _ in range(PROMPT)] for _ in range(checkpoints // 2)]
    # a prompt leaves two: below its end, and where the request ended
    filled.generate(prompts, SamplingParams(max_tokens=2, ignore_eos=True))
    engine = AsyncEngine(filled)
    try:
        yield engine, create_app(engine, model_name=model)
    finally:
        engine.close()


async def step_ms(engine: AsyncEngine, app: FastAPI, *, polled: bool, tokens: int = 400) -> float:
    """Milliseconds of one decode step of a batch, while somebody watches or nobody does."""
    watcher = asyncio.create_task(watch(app)) if polled else None
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    start = time.perf_counter()
    await asyncio.gather(*(engine.generate([1] * PROMPT, params, use_cache=False) for _ in range(BATCH)))
    taken = time.perf_counter() - start
    if watcher is not None:
        watcher.cancel()
    return taken / tokens * 1e3


def client_of(app: FastAPI) -> httpx.AsyncClient:
    """A client in this process; without the proxies of the environment, whose certificates take long to load."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://page", trust_env=False)


async def watch(app: FastAPI) -> None:
    """What an open page does."""
    async with client_of(app) as client:
        while True:
            (await client.get("/v1/status")).raise_for_status()
            await asyncio.sleep(PERIOD)


async def look_ms(engine: AsyncEngine) -> float:
    """Milliseconds that one answer occupies the engine's thread."""

    def timed(core: EngineCore) -> float:
        start = time.perf_counter()
        Look.at(core)
        return time.perf_counter() - start

    return await engine.call(timed) * 1e3


async def answer_ms(app: FastAPI) -> float:
    """Milliseconds of processor time that one answer takes, in whatever thread."""
    async with client_of(app) as client:
        start = time.process_time()
        for _ in range(ANSWERS):
            (await client.get("/v1/status")).raise_for_status()
        return (time.process_time() - start) / ANSWERS * 1e3


def show(rows: list[Row]) -> None:
    columns = ("checkpoints", "step ms", "polled ms", "ratio", "look ms", "answer ms", "share", "aim", "met")
    lines = [
        (
            str(row["checkpoints"]),
            common.number(row["alone_ms"]),
            common.number(row["polled_ms"]),
            f"{row['ratio']:.4f} ({row['p10']:.3f} to {row['p90']:.3f})",
            common.number(row["look_ms"]),
            common.number(row["answer_ms"]),
            f"{row['share']:.2%}",
            row["aim"],
            "yes" if row["met"] else "NO",
        )
        for row in rows
    ]
    common.print_table(f"decode steps of {BATCH} sequences, with and without an open page", columns, lines)


if __name__ == "__main__":
    sys.exit(main())
