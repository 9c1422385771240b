"""Every step of building and composing may fail: who it hits ends with an error, and every pool balances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from holdover.chunks import ChunkStore, Extras
from holdover.engine.chunks import repair, reuse
from holdover.engine.chunks.reuse import ChunkReuse
from holdover.engine.residence import Residence
from holdover.engine.runner import Runner
from holdover.engine.step import Step
from holdover.errors import CapacityError
from holdover.prefix import PrefixCache
from holdover.prefix.rows import TreeRows
from holdover.state import SlotPool
from holdover.store import KVPool, SlotAllocator, StateTiers
from tests.engine.chunk_bench import QUERY, ChunkBench, chunks_of
from tests.engine.harness import RTOL, distributions, failing, prompt_of
from tests.helpers import assert_close

NAME = "small-qwen3_5"
POINTS: list[tuple[Any, str]] = [
    (ChunkReuse, "_choose"),
    (ChunkReuse, "_probe"),
    (ChunkStore, "begin"),
    (ChunkStore, "finish"),
    (ChunkStore, "hold"),
    (Extras, "of"),
    (KVPool, "copy"),
    (KVPool, "write"),
    (PrefixCache, "open"),
    (Residence, "enter"),
    (Runner, "run"),
    (SlotAllocator, "acquire"),
    (SlotPool, "adopt"),
    (SlotPool, "begin"),
    (SlotPool, "commit"),
    (SlotPool, "reset"),
    (SlotPool, "settle"),
    (StateTiers, "acquire"),
    (StateTiers, "donate"),
    (StateTiers, "restore"),
    (Step, "convolve"),
    (Step, "mix"),
    (TreeRows, "allocate"),
    (repair, "rejoin"),
    (repair, "seed"),
    (reuse, "query_attention"),
    (reuse, "relocate"),
]
# one in every stage
STAGES = ("begin", "run", "finish", "hold", "enter", "relocate", "seed", "restore", "rejoin")
INTERRUPTED = [point for point in POINTS if point[1] in STAGES]
# those that take slots, rows or budget
TAKING = (ChunkStore, PrefixCache, Residence, SlotAllocator, StateTiers, TreeRows)
ROOM = [point for point in POINTS if point[0] in TAKING]
PARTS = [prompt_of(2, seed=3), *chunks_of(9, 5), prompt_of(1, seed=4)]
FOLLOWED = (*QUERY, *prompt_of(4, seed=8))


def bench_with_requests() -> ChunkBench:
    """Two requests over the same chunks, a probe among them, one that resumes, and one without chunks."""
    bench = ChunkBench(NAME, chunk=8, max_running=3)
    bench.want(PARTS, tokens=2, selector="prophetkv", id="a")
    bench.want(PARTS[::-1], tokens=2, selector="seam", id="b", checkpoint_at=(17,))
    bench.want(PARTS[::-1], FOLLOWED, tokens=2, selector="seam", id="c")
    bench.add(prompt_of(9), tokens=2, request={"id": "d"})
    return bench


@cache
def wanted() -> dict[str, torch.Tensor]:
    bench = bench_with_requests()
    outputs = bench.run()
    assert bench.cache.counters["chunks_built"] == 2
    assert outputs["c"].cache.state_depth == 17
    bench.assert_empty()
    return {request_id: distributions(output.logprobs) for request_id, output in outputs.items()}


def replace_with(owner: Any, method: str, made: Callable[[Callable], Callable], patch: pytest.MonkeyPatch) -> None:
    is_bound = isinstance(owner, type) and isinstance(owner.__dict__[method], classmethod)
    function = made(getattr(owner, method))
    patch.setattr(owner, method, staticmethod(function) if is_bound else function)


def run_with_a_fault(owner: Any, method: str, at: int, error: BaseException) -> None:
    bench = bench_with_requests()
    with pytest.MonkeyPatch.context() as patch:
        replace_with(owner, method, lambda function: failing(function, at, error), patch)
        while bench.core.has_work:
            assert bench.steps < 300
            try:
                bench.step()
            except KeyboardInterrupt:
                bench.check()
    # what an interrupted forward ends is reported to nobody, since nobody gets the step's updates
    assert set(bench.outputs) == set(wanted()) or isinstance(error, KeyboardInterrupt)
    for request_id, output in bench.outputs.items():
        if output.error is None:
            assert_close(request_id, distributions(output.logprobs), wanted()[request_id], RTOL)
        else:
            assert output.error is error
    bench.assert_empty()


@cache
def calls() -> Counter[tuple[Any, str]]:
    """How often every point is called."""
    bench, counts = bench_with_requests(), Counter[tuple[Any, str]]()
    with pytest.MonkeyPatch.context() as patch:
        for point in POINTS:

            def counting(function: Callable, point: tuple[Any, str] = point) -> Callable:
                def counted(*args, **kwargs):
                    counts[point] += 1
                    return function(*args, **kwargs)

                return counted

            replace_with(*point, counting, patch)
        bench.run()
    return counts


def places(owner: Any, method: str, most: int) -> range:
    """Every call of a point's, or some of them where it has many."""
    count = calls()[owner, method]
    assert count, f"{method} is never called"
    return range(0, count, -(-count // most))


def ids(value: object) -> str:
    return getattr(value, "__name__", str(value)).split(".")[-1]


@pytest.mark.parametrize(("owner", "method"), POINTS, ids=ids)
def test_a_fault_anywhere(owner: Any, method: str) -> None:
    for at in places(owner, method, 6):
        run_with_a_fault(owner, method, at, RuntimeError("injected"))


@pytest.mark.parametrize(("owner", "method"), ROOM, ids=ids)
def test_no_room_anywhere(owner: Any, method: str) -> None:
    """What a request can wait for, or go without, is told apart from other faults."""
    for at in places(owner, method, 6):
        run_with_a_fault(owner, method, at, CapacityError("injected"))


@pytest.mark.parametrize(("owner", "method"), INTERRUPTED, ids=ids)
def test_an_interrupt_anywhere(owner: Any, method: str) -> None:
    """It comes through to whoever steps, and the engine goes on where it was, or ends what it hit."""
    for at in places(owner, method, 4):
        run_with_a_fault(owner, method, at, KeyboardInterrupt())
