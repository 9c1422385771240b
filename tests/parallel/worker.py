"""Every case of the tests on two ranks, with an engine of one process beside them on rank 0.

The two are forked from one process, which imports what takes seconds once; torchrun gives ranks the same environment.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from holdover.engine import build
from holdover.engine.engine import Engine
from holdover.engine.options import EngineOptions
from holdover.engine.parallel.ranks import Ranks
from holdover.engine.parallel.shard import Shard
from holdover.errors import HoldoverError, ParallelError, PlanError
from holdover.state import SlotPool
from holdover.store.mover import Inline
from holdover.store.packed_pool import PackedPool
from tests.engine.harness import prompt_of
from tests.parallel import models, script
from tests.parallel.cases import CASES, SIZES, Case

# packed slots, so many that what records differ by is worth native ones
MANY = 200

_alone: dict[tuple[Any, ...], list[Any]] = {}


def main(target: Path) -> None:
    torch.set_num_threads(1)
    # ranks do not move anything behind the engine's back, so what they are compared with may not either
    build.mover_for = lambda device: Inline()
    results: dict[str, Any] = {"logits": {}, "cases": {}}
    with Ranks.join("cpu") as ranks:
        check_messages(ranks)
        check_sizes(ranks)
        for name in (*models.ARCHITECTURE_ROWS, *models.ONE_GROUP):
            results["logits"][name] = compare_logits(name, ranks)
        for case in CASES:
            results["cases"][case.name] = compare(case, ranks)
        check_the_end(ranks)
        if ranks.leads:
            target.write_text(json.dumps(results))


def check_messages(ranks: Ranks) -> None:
    """Short and long ones arrive as they were sent, in order; what fails on one rank fails on all."""
    for message in (["step"], ["add", list(range(5000))], ["x" * 1012], ["x" * 1013]):
        if ranks.leads:
            ranks.send(message)
        else:
            assert ranks.receive() == message
    with pytest.raises(HoldoverError, match="no such plan"):
        fail_on_rank_1(ranks)
    assert ranks.least(10 - ranks.rank) == 9


def fail_on_rank_1(ranks: Ranks) -> None:
    with ranks.agreed():
        if not ranks.leads:
            raise PlanError("no such plan")


def check_sizes(ranks: Ranks) -> None:
    """Ranks whose records differ in size have equally many slots; a budget that is too small for one is refused."""
    plan = models.plan_for(models.FAMILIES[0])
    host, shard = models.cut(models.FAMILIES[0], ranks, plan, "off")
    packed = PackedPool.bytes_for(shard.codec(host.layout.state, "full"), MANY)
    least, slot = ranks.least(packed), SlotPool.bytes_for(host.layout.state, 0)
    assert -ranks.least(-packed) - least > 4 * slot
    options = EngineOptions(**SIZES | {"packed_slots": MANY, "plan": plan})
    core, _ = build.build_core(host, options, shard=shard)
    slots = core.cache.tiers.native.pool.num_slots
    assert ranks.least(slots) == slots == -ranks.least(-slots)
    with pytest.raises(HoldoverError, match="state budget"):
        build.build_core(host, replace(options, state_budget=least + 3 * slot), shard=shard)


def check_the_end(ranks: Ranks) -> None:
    """Where another rank has left, the caller is told so, and not what that leads to."""
    host, shard = models.cut(models.FAMILIES[0], ranks, None, "off")
    engine = Engine(models.loaded(host, shard), EngineOptions(**SIZES))
    if not ranks.leads:
        ranks.leave()
        return
    with engine:
        for message in ("cannot go on after", "the other ranks are gone"):
            with pytest.raises(ParallelError, match=message):
                script.ask(engine, [prompt_of(script.PROMPT)])


def compare_logits(name: str, ranks: Ranks) -> dict[str, Any]:
    """One forward of a model that is cut, and of the same model whole."""
    shared, shard = models.cut(name, ranks, None, "off")
    found = logits_of(shared, shard, ranks)
    return {"found": found, "wanted": logits_of(models.whole(name), None, None)} if ranks.leads else {}


def logits_of(host: Any, shard: Shard | None, ranks: Ranks | None) -> list[Any]:
    engine = Engine(models.loaded(host, shard), EngineOptions(**SIZES))
    if ranks is not None and not ranks.leads:
        engine.follow()
        return []
    with engine:
        return script.report(script.ask(engine, [prompt_of(script.PROMPT)])[0])["logprobs"]


def compare(case: Case, ranks: Ranks) -> dict[str, Any]:
    """Everything one case asks for, from several ranks and from one process."""
    plan = models.plan_for(case.model) if case.is_planned else None
    host, shard = models.cut(case.model, ranks, plan, case.mode)
    options = EngineOptions(**{**SIZES, **case.options}, plan=plan)
    engine = Engine(models.loaded(host, shard), options)
    if not ranks.leads:
        engine.follow()
        return {}
    with engine:
        found = [script.report(output) for output in case.run(engine)]
        codec = engine.core.cache.tiers.codec
        facts = {
            "bytes": codec.nbytes,
            "moved": codec.exchange.remote_bytes if hasattr(codec, "exchange") else 0,
            "counters": dict(engine.core.cache.counters),
            "mode": None if shard.placement is None else shard.placement.mode,
        }
    return facts | {"found": found, "wanted": answers_alone(case, options)}


def answers_alone(case: Case, options: EngineOptions) -> list[Any]:
    """What one process answers; placements of one model are compared with the same answers."""
    key = case.model, case.is_planned, repr(case.options), case.run.__name__
    if key not in _alone:
        with Engine(models.loaded(models.whole(case.model), None), options) as engine:
            _alone[key] = [script.report(output) for output in case.run(engine)]
    return _alone[key]


def fork_ranks(target: Path) -> int:
    """Run `main` in two processes; the exit code."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [multiprocessing.get_context("fork").Process(target=_enter, args=(r, port, target)) for r in range(2)]
    for process in processes:
        process.start()
    # one that ends before its time takes the other with it: that is what the engine promises
    for process in processes:
        process.join()
    return max(abs(process.exitcode or 0) for process in processes)


def _enter(rank: int, port: int, target: Path) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    main(target)


if __name__ == "__main__":
    sys.exit(fork_ranks(Path(sys.argv[1])))
