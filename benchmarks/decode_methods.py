"""Which methods are timed at which operator and batch size, and compiling their kernels beforehand."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from benchmarks import common
from benchmarks.decode_arms import SHAPES, Arm, Cell, deferred_arm, floor_arm, release, verify_arm
from benchmarks.peers.compiled import compiled
from benchmarks.peers.fla import fla
from benchmarks.peers.peer import Peer, peer_arm
from benchmarks.peers.sglang import sglang, sglang_replay
from benchmarks.peers.staged import staged
from benchmarks.peers.vllm import vllm, vllm_replay
from holdover.ops.deferred import traffic

# tokens that vLLM and SGLang replay by default, and the interval that is best here
REPLAYED = (8, 16)


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        batches: B of the main table.
        sweep: B at which merge intervals, fills and drafts are varied, and the staged form is timed.
        compiled: B for which the plain recurrence is compiled by torch.
        intervals: M of the sweep.
        drafts: T of the verification table.
        rounds: turns that the arms of a cell take.
        replays: timed graph replays of one turn.
        check_tokens: length of the rollouts that are compared with float64.
        check_batch: B of those.
    """

    batches: tuple[int, ...]
    sweep: tuple[int, ...]
    compiled: tuple[int, ...]
    intervals: tuple[int, ...]
    drafts: tuple[int, ...]
    rounds: int
    replays: int
    check_tokens: int
    check_batch: int


COMPILED = (16, 128, 512)
# 64 to 512 sequences have states of 128 MiB to 1 GiB
FULL = Scale(
    (1, 4, 16, 64, 128, 256, 512, 1024), (128, 512), COMPILED, (2, 3, 6, 12, 16, 32, 64), (2, 4, 8), 4, 15, 128, 64
)
QUICK = Scale((16, 128, 512), (128,), COMPILED, (16,), (4,), 3, 10, 32, 16)


@dataclass(frozen=True)
class Method:
    """Something to time, made when its turn comes.

    Attributes:
        name: as in result files.
        make: allocates what it needs beside the cell's states. Methods of others raise ImportError where they are not
            installed, LookupError where they have no kernel or it disagrees, or whatever else befalls them.
    """

    name: str
    make: Callable[[], Arm]


def methods(cell: Cell, scale: Scale) -> Iterator[Method]:
    """Every method at one operator and batch size; more of our own where M, fill and drafts are varied."""
    swept = cell.batch in scale.sweep
    yield Method("floor", partial(floor_arm, cell))
    yield from others(cell, scale)
    yield Method("holdover-dense", partial(deferred_arm, cell, 1, method="holdover-dense"))
    best = traffic.best_interval(cell.shape.layout(1))
    for interval in sorted({4, 8, best, *(scale.intervals if swept else ())}):
        yield Method("holdover", partial(deferred_arm, cell, interval))
    if swept:
        for fill in (0, 3, 6, 7):
            yield Method("holdover", partial(deferred_arm, cell, 8, fill))
        for drafts in scale.drafts:
            yield Method("holdover-verify", partial(verify_arm, cell, drafts, merge_interval=16))


def others(cell: Cell, scale: Scale) -> Iterator[Method]:
    """The methods that are not ours."""
    if cell.batch in scale.compiled:
        yield _other(cell, "torch-compile", compiled)
    yield _other(cell, "fla", fla)
    yield _other(cell, "vllm", vllm)
    yield _other(cell, "sglang", sglang)
    if cell.shape.family.name == "kda":
        yield _other(cell, "sglang-triton", partial(sglang, cuda=False))
    for interval in REPLAYED:
        yield _other(cell, "vllm-replay", partial(vllm_replay, interval=interval))
        yield _other(cell, "sglang-replay", partial(sglang_replay, interval=interval))
    if cell.batch in scale.sweep:
        yield _other(cell, "staged", partial(staged, interval=8))


def _other(cell: Cell, name: str, peer: Callable[..., Peer]) -> Method:
    return Method(name, lambda: peer_arm(cell, peer(cell.shape)))


def warm(ops: Sequence[str], batches: Sequence[int], scale: Scale, parts: int = 6) -> None:
    """Compile in many processes at once what will be timed: it takes longer than timing, and compilers cache on disk.

    Triton's kernels hardly differ between batch sizes and are compiled at one; torch's are at each of theirs.
    """
    first = next((batch for batch in scale.sweep if batch in batches), max(batches))
    # each process compiles by itself: torch would start as many again in every one
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    workers = min(16, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(_run_once, op, first, scale, part, parts) for op in ops for part in range(parts)]
        for batch in {*scale.compiled} & {*batches} - {first}:
            running += [pool.submit(_run_once, op, batch, scale, only="torch-compile") for op in ops]
        try:
            for task in running:
                task.result()
        except BrokenProcessPool:
            common.console.print("a process that compiled beforehand has died: what it left is compiled when timed")


def _run_once(op: str, batch: int, scale: Scale, part: int = 0, parts: int = 1, only: str | None = None) -> None:
    cell = Cell.make(SHAPES[op], batch, span=0)
    chosen = [method for method in methods(cell, scale) if only in (None, method.name)]
    for method in chosen[part::parts]:
        # what fails here fails again where it is timed, and is said there
        with suppress(Exception):
            method.make().run()
        release()
