"""Warm-up and replay (DASC App. C.2): every prompt is run once unscored, then asked again from what the cache kept.

Problems go through in blocks: the cache is flushed, each problem of the block is run once so that its state is kept,
and the block is replayed so many times. What a replay says counts whether it hit or not. Every hit of an arm must come
from the tier that the arm is about.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from holdover.engine.engine import Engine
from holdover.engine.hf.loader import Loaded
from holdover.engine.options import EngineOptions
from holdover.engine.request import Output
from holdover.engine.sampling import SamplingParams
from holdover.errors import ConfigError, IntegrityError
from holdover.evaluation.journal import Journal
from holdover.evaluation.protocols.arms import Arm
from holdover.evaluation.protocols.problem import Problem, batches
from holdover.store import KVPool

# a request for the prompt alone would leave no checkpoint
_UNSCORED = SamplingParams(max_tokens=1, temperature=0.0)
# of the controlled variant: token hit and share of loaded requests of a block, and the latter of an arm
_LEAST_HIT, _LEAST_LOADED, _LEAST_LOADED_OF_ARM = 0.70, 0.95, 0.99


@dataclass(frozen=True)
class Schedule:
    """How problems are asked.

    Attributes:
        replays: scored replays of every problem.
        block: problems that are cached together.
        concurrency: requests that run together.
        temperature: of the replays; 0 for greedy.
        controlled: whether a block that breaks the residency conditions of the controlled suffix-refresh study stops
            the run: no eviction in replay, token hit above 0.70, 95 % of requests loaded, 99 % in a whole arm.
    """

    replays: int = 1
    block: int = 64
    concurrency: int = 16
    temperature: float = 0.0
    controlled: bool = False


@dataclass(frozen=True)
class Replay:
    """One measured replay.

    Attributes:
        problem: id of the problem.
        score: what the answer is worth.
        cached: tokens of the prompt that were resumed (C_i).
        new: the others (N_i).
    """

    problem: str
    score: float
    cached: int
    new: int


@dataclass(frozen=True)
class Block:
    """What one block of one arm gave.

    Attributes:
        replays: every replay, round by round.
        evicted: checkpoints that were evicted while it was replayed.
    """

    replays: tuple[Replay, ...]
    evicted: int

    @property
    def hit(self) -> float:
        """Token hit, pooled."""
        return pooled_hit(self.replays)

    @property
    def loaded(self) -> float:
        """Share of requests that resumed."""
        return loaded_share(self.replays)


def pooled_hit(replays: Sequence[Replay]) -> float:
    """H = sum C_i / sum (C_i + N_i)."""
    return sum(one.cached for one in replays) / sum(one.cached + one.new for one in replays)


def loaded_share(replays: Sequence[Replay]) -> float:
    """Share of requests that resumed from a checkpoint."""
    return sum(one.cached > 0 for one in replays) / len(replays)


def run_arm(
    loaded: Loaded, arm: Arm, problems: Sequence[Problem], schedule: Schedule, base: EngineOptions, journal: Journal
) -> Iterator[Block]:
    """Ask every problem of one arm; blocks that the journal has are not run again.

    Args:
        loaded: the model.
        arm: how checkpoints are kept.
        problems: what is asked.
        schedule: how.
        base: options of the engine; what the arm and the schedule decide is replaced.
        journal: blocks by arm and place.

    Raises:
        ConfigError: a problem is longer than the context, or a block breaks a condition of the controlled variant.
        IntegrityError: a hit came from another tier than the arm's.
    """
    longest = max(map(len, problems))
    if longest > loaded.host.layout.max_context:
        raise ConfigError(
            f"a problem of {longest} tokens with its answer does not fit into the context of "
            f"{loaded.host.layout.max_context}: choose shorter ones"
        )
    blocks = list(batches(problems, schedule.block))
    keys = [f"{arm.name}/{number}" for number in range(len(blocks))]
    done: list[Replay] = []
    runner: _Runner | None = None
    try:
        for key, block in zip(keys, blocks, strict=True):
            if key not in journal:
                runner = runner or _Runner(loaded, arm, longest, schedule, base)
                journal.add({key: asdict(runner.run(block))})
            result = _block(journal[key])
            if schedule.controlled:
                _check_block(key, result)
            done += result.replays
            yield result
    finally:
        if runner is not None:
            runner.engine.close()
    if schedule.controlled and loaded_share(done) < _LEAST_LOADED_OF_ARM:
        raise ConfigError(f"arm {arm.name}: only {loaded_share(done):.1%} of requests were loaded")


class _Runner:
    """An engine for one arm, with room for one block's checkpoints and rows beside what runs."""

    def __init__(self, loaded: Loaded, arm: Arm, longest: int, schedule: Schedule, base: EngineOptions) -> None:
        rows = (schedule.block + schedule.concurrency + 1) * longest
        budget = base.kv_budget or KVPool.bytes_for(loaded.host.layout.kv, rows)
        options = replace(base, max_running=schedule.concurrency, kv_budget=budget)
        self.engine = Engine(loaded, arm.options(options, schedule.block))
        self._arm = arm
        self._schedule = schedule

    def run(self, problems: Sequence[Problem]) -> Block:
        """Flush, fill, replay."""
        cache = self.engine.core.cache
        cache.flush()
        prompts = [problem.prompt for problem in problems]
        self.engine.generate(prompts, _UNSCORED)
        before = cache.counters["states_evicted"]
        replays = [one for number in range(self._schedule.replays) for one in self._replay(problems, number)]
        return Block(tuple(replays), cache.counters["states_evicted"] - before)

    def _replay(self, problems: Sequence[Problem], number: int) -> list[Replay]:
        params = [p.params(self._schedule.temperature, _seed(p.id, number)) for p in problems]
        outputs = self.engine.generate([problem.prompt for problem in problems], params)
        return [self._measured(problem, output) for problem, output in zip(problems, outputs, strict=True)]

    def _measured(self, problem: Problem, output: Output) -> Replay:
        cache = output.cache
        if cache.tier not in (None, self._arm.tier):
            raise IntegrityError(f"arm {self._arm.name}: problem {problem.id} resumed from the {cache.tier} tier")
        cached = cache.state_depth
        return Replay(problem.id, problem.score(output), cached, cache.prompt_tokens - cached)


def _seed(problem: str, replay: int) -> int:
    """The same in every arm."""
    return int.from_bytes(hashlib.sha256(f"{problem}\0{replay}".encode()).digest()[:4], "big")


def _block(entry: dict[str, Any]) -> Block:
    return Block(tuple(Replay(**one) for one in entry["replays"]), entry["evicted"])


def _check_block(key: str, block: Block) -> None:
    if block.evicted:
        raise ConfigError(f"block {key}: {block.evicted} checkpoints were evicted in replay: lower --block")
    if block.hit <= _LEAST_HIT or block.loaded < _LEAST_LOADED:
        raise ConfigError(
            f"block {key}: token hit {block.hit:.3f}, {block.loaded:.1%} loaded; wanted above {_LEAST_HIT} and "
            f"{_LEAST_LOADED:.0%} or more"
        )
