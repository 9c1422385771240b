"""Which order of eviction finds the most in a trace of block hashes, and which checkpoints are ever found there.

    python -m benchmarks eviction conversation_trace.jsonl [--quick]

The trace is for whoever runs this to get; Mooncake's is one. Nothing is timed, since hits do not depend on costs. Where
orders are compared, lengths are divided by ``--shorter``, those of blocks and between checkpoints as well: a request
takes as many checkpoints as it would, and a simulation as much less time. Kinds of checkpoints are counted at full
length, in the first window.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import get_args

import torch

from benchmarks import common
from benchmarks.common import Row
from benchmarks.serve_models import SHAPES, drawn_decay
from holdover.engine.options import EngineOptions
from holdover.evaluation.simulate.costs import Costs, ForwardCost
from holdover.evaluation.simulate.points import Point
from holdover.evaluation.simulate.replay import replay
from holdover.evaluation.simulate.simulate import build, simulate
from holdover.evaluation.traces.block_prompts import block_exchanges
from holdover.evaluation.traces.blocks import BlockTrace, read_blocks
from holdover.evaluation.traces.exchanges import Exchange
from holdover.prefix.eviction import Eviction
from holdover.prefix.policies import (
    AnyOf,
    BranchPoint,
    CheckpointPolicy,
    EndOfRequest,
    EveryN,
    MessageBoundaries,
    NoCheckpoints,
    Prompt,
    PromptTail,
)
from holdover.retention.decay import ModelDecay
from holdover.state import SlotPool
from holdover.state.key import chain_of
from holdover.store import KVPool

_VOCABULARY = 163_840
_CONTEXT = 1 << 20
_EVERY = 2048
_CHUNK = 2048
# dense checkpoints beside the states of what runs
_BUDGETS = (256, 64, 1024, 16)
# more than a thousand requests take
_ENOUGH = 1 << 14
_FREE = ForwardCost(0.0, 0.0, 0.0)
_COSTS = Costs("none", "none", "bfloat16", _FREE, _FREE, 0.0, 0.0)


@dataclass(frozen=True)
class Setting:
    """One simulation.

    Attributes:
        first: request that the window begins with.
        model: of `SHAPES`.
        w_max: retention cutoff; None for dense checkpoints.
        dense_slots: dense checkpoints that the budget buys beside the states of what runs.
        eviction: which one leaves first.
    """

    first: int
    model: str
    w_max: int | None
    dense_slots: int
    eviction: Eviction


class Workload:
    """A window of the trace, for one model.

    Args:
        trace: the window.
        model: of `SHAPES`.
        flags: how it is asked for.
        shorter: what its lengths are divided by.
    """

    def __init__(self, trace: BlockTrace, model: str, flags: Namespace, shorter: int) -> None:
        self.decay: ModelDecay = drawn_decay(model, _VOCABULARY)
        self.layout = replace(self.decay.layout, max_context=_CONTEXT)
        self.exchanges = block_exchanges(_divided(trace, shorter), _VOCABULARY)
        self.flags, self.shorter = flags, shorter
        self.kinds: dict[str, CheckpointPolicy] = {
            "end of a request": EndOfRequest(),
            "end of a prompt": MessageBoundaries(),
            "where prompts part": BranchPoint(),
            "below a prompt's end": PromptTail(),
            f"every {_EVERY:,} tokens": EveryN(_EVERY // shorter),
        }

    @property
    def dialogues(self) -> list[list[Exchange]]:
        """A conversation of one turn for every request."""
        return [[exchange] for exchange in self.exchanges]

    def options(self, point: Point, slots: int, policy: CheckpointPolicy) -> EngineOptions:
        """Of an engine with room for so many dense checkpoints, and for all KV."""
        running = self.flags.running
        rows = sum(len(one.prompt) + len(one.reply) for one in self.exchanges) + running * _CHUNK
        base = EngineOptions(
            state_budget=SlotPool.bytes_for(self.layout.state, running + slots),
            kv_budget=KVPool.bytes_for(self.layout.kv, rows),
            max_running=running,
            chunk_size=_CHUNK // self.shorter,
            policy=policy,
            decode="dense",
        )
        return point.options(base, self.decay)


class Watched(NoCheckpoints):
    """Takes what several policies take, and notes which of them wanted it.

    Args:
        kinds: the policies, by name.

    Attributes:
        plans: names for each depth that a prompt will stop at, of every prompt in the order of admission.
    """

    def __init__(self, kinds: dict[str, CheckpointPolicy]) -> None:
        self._kinds = kinds
        self.plans: list[dict[int, list[str]]] = []

    def prompt_depths(self, prompt: Prompt) -> Iterable[int]:
        """Union."""
        plan: dict[int, list[str]] = {}
        for name, policy in self._kinds.items():
            for depth in policy.prompt_depths(prompt):
                plan.setdefault(depth, []).append(name)
        self.plans.append(plan)
        return plan

    def during_decode(self, depth: int) -> bool:
        """Never: replies are short."""
        return False

    def at_end(self) -> bool:
        """Always."""
        return True


def main() -> int:
    parser = common.arguments("eviction", __doc__)
    parser.add_argument("trace", type=Path, help="rows of input_length, output_length and hash_ids")
    parser.add_argument("--requests", type=int, default=1000, help="requests of a window (default: %(default)s)")
    parser.add_argument("--first", default="0,6000", help="requests that windows begin with (default: %(default)s)")
    parser.add_argument("--shorter", type=int, default=8, help="what lengths are divided by (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=32, help="requests under way at a time (default: %(default)s)")
    parser.add_argument("--running", type=int, default=16, help="requests that run together (default: %(default)s)")
    parser.add_argument("--seconds", type=float, help="start no simulation after so long")
    parser.add_argument("--keep", action="store_true", help="do not simulate again what the file has of this trace")
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    start, requests = time.monotonic(), 100 if flags.quick else flags.requests
    windows = {int(first): _window(flags.trace, int(first), requests) for first in flags.first.split(",")}
    settings = list(_settings(list(windows)))[: 3 if flags.quick else None]
    about: Row = {
        "trace": flags.trace.name,
        "windows": {str(first): _described(trace, flags.shorter) for first, trace in windows.items()},
        "scale": {name: getattr(flags, name) for name in ("shorter", "clients", "running")} | {"requests": requests},
    }
    kinds, found = _kept(flags.out, about) if flags.keep else ([], {})
    made: dict[tuple[int, str], Workload] = {}
    with common.progress("simulating", len(settings) + 1) as advance:
        kinds = kinds or _kinds(Workload(next(iter(windows.values())), "kimi-linear", flags, 1))
        advance()
        for setting in settings:
            if flags.seconds is not None and time.monotonic() - start > flags.seconds:
                break
            if setting not in found:
                key = (setting.first, setting.model)
                if key not in made:
                    made[key] = Workload(windows[setting.first], setting.model, flags, flags.shorter)
                found[setting] = _row(made[key], setting)
            advance()
    rows = [found[setting] for setting in settings if setting in found]
    _show(rows, kinds)
    common.write_results(flags.out, rows, kinds=kinds, **about)
    return 0


def _kept(path: Path, about: Row) -> tuple[list[Row], dict[Setting, Row]]:
    """Kinds and rows of a file, if it is of the same work and code."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    wanted = about | {"commit": common.commit()}
    if any(found.get(name) != value for name, value in wanted.items()):
        return [], {}
    names = [field.name for field in fields(Setting)]
    return found["kinds"], {Setting(**{name: row[name] for name in names}): row for row in found["rows"]}


def _settings(windows: list[int]) -> Iterator[Setting]:
    """The most telling ones first."""
    orders: tuple[Eviction, ...] = get_args(Eviction)
    for slots in _BUDGETS:
        yield from (Setting(first, "kimi-linear", None, slots, one) for first in windows for one in orders)
    yield from (Setting(first, "kimi-linear", None, _ENOUGH, "lru") for first in windows)
    for model in ("kimi-linear", "qwen3-next"):
        w_max = SHAPES[model].windows[0]
        yield from (Setting(windows[0], model, w_max, slots, one) for slots in _BUDGETS[:2] for one in orders)


def _window(path: Path, first: int, count: int) -> BlockTrace:
    trace = read_blocks(path, context=_CONTEXT, limit=first + count)
    return replace(trace, requests=trace.requests[first:])


def _described(trace: BlockTrace, shorter: int) -> Row:
    """What a window asks for, and how many other requests come between two turns of a conversation."""
    waits = list(_waits(block_exchanges(_divided(trace, shorter), _VOCABULARY)))
    return {
        "digest": trace.digest,
        "prompt_tokens": sum(one.prompt for one in trace.requests) / len(trace.requests),
        "between_turns": common.spread(waits) if waits else None,
    }


def _waits(exchanges: Sequence[Exchange]) -> Iterator[int]:
    """Requests between each one whose conversation goes on and the first that repeats its reply."""
    for place, one in enumerate(exchanges, 1):
        end, begins = len(one.prompt), one.reply[:1]
        # no other request has this token here
        later = (number for number, other in enumerate(exchanges[place:]) if other.prompt[end : end + 1] == begins)
        yield from islice(later, 1)


def _divided(trace: BlockTrace, by: int) -> BlockTrace:
    """The trace with each length divided, rounded up: as many blocks as before."""
    requests = (replace(one, prompt=-(-one.prompt // by), reply=-(-one.reply // by)) for one in trace.requests)
    return replace(trace, block=trace.block // by, requests=tuple(requests))


def _row(workload: Workload, setting: Setting) -> Row:
    point = Point(setting.w_max, "full", "none", setting.eviction)
    policy = AnyOf(tuple(workload.kinds.values()))
    options = workload.options(point, setting.dense_slots, policy)
    found = simulate(workload.layout, options, workload.dialogues, clients=workload.flags.clients, costs=_COSTS)
    return asdict(setting) | {
        "point": point.name,
        "native_slots": found.native_slots,
        "packed_slots": found.packed_slots,
        "hit": found.hit,
        "restores": sum(found.restores.values()),
        "states_evicted": found.states_evicted,
    }


def _kinds(workload: Workload) -> list[Row]:
    """What is taken and found of each kind where nothing is ever evicted; the last row is of all together."""
    watched = Watched(workload.kinds)
    most = sum(8 + len(one.prompt) * workload.shorter // _EVERY for one in workload.exchanges)
    options = workload.options(Point(None, "full", "none", "lru"), most, watched)
    simulated = build(workload.layout, options, _COSTS)
    try:
        replay(simulated.core, simulated.prepare, workload.dialogues, workload.flags.clients, simulated.timer)
        assert not simulated.core.cache.counters["states_evicted"]
        names, namespace = _names(workload, watched), simulated.prepare.namespace("")
        wanted = {chain_of(namespace, tokens).key(): kinds for tokens, kinds in names}
        total: Counter[tuple[str, str]] = Counter()
        for one in simulated.core.cache.tiers.order:
            for kind in [*wanted[one.header.key], "all"]:
                found = {"taken": 1, "found": bool(one.hits), "hits": one.hits, "tokens": one.hits * one.header.depth}
                total.update({(kind, name): value for name, value in found.items()})
    finally:
        simulated.core.close()
    prompts = sum(len(one.prompt) for one in workload.exchanges)
    return [
        {"kind": kind}
        | {name: total[kind, name] for name in ("taken", "found", "hits")}
        | {"hit": total[kind, "tokens"] / prompts}
        for kind in [*workload.kinds, "all"]
    ]


def _names(workload: Workload, watched: Watched) -> Iterator[tuple[tuple[int, ...], list[str]]]:
    """Tokens of every checkpoint that may have been taken, and the kinds that it is of; the first taker is named."""
    end = next(iter(workload.kinds))
    # requests are admitted in their order; a dict keeps the last one of a key
    for exchange, plan in reversed(list(zip(workload.exchanges, watched.plans, strict=True))):
        tokens = exchange.prompt + exchange.reply
        yield tokens[:-1], [end]
        yield from ((tokens[:depth], kinds) for depth, kinds in plan.items())


def _show(rows: list[Row], kinds: list[Row]) -> None:
    cells = [
        [row["kind"], *(f"{row[name]:,}" for name in ("taken", "found", "hits")), f"{row['hit']:.3f}"] for row in kinds
    ]
    common.print_table("Nothing evicted", ("kind", "taken", "found", "hits", "hit"), cells)
    cells = [
        [f"{row['first']:,}", row["model"], row["point"], str(row["dense_slots"]), row["eviction"], f"{row['hit']:.3f}"]
        for row in rows
    ]
    common.print_table("Hits", ("window", "model", "point", "dense slots", "eviction", "hit"), cells)


if __name__ == "__main__":
    sys.exit(main())
