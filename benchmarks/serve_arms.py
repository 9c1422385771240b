"""One model's servers: an engine for each configuration, behind a port, asked by `holdover bench serve`."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks import serve_memory
from benchmarks.common import ROOT, Row
from benchmarks.serve_grid import Setup
from holdover.arch.registry import layout_from_config
from holdover.cli.port import behind_port
from holdover.engine.engine import Engine
from holdover.engine.hf.loader import Loaded, load
from holdover.engine.options import EngineOptions
from holdover.engine.parallel.load import load_shard
from holdover.engine.parallel.ranks import Ranks
from holdover.engine.sampling import SamplingParams
from holdover.errors import HoldoverError
from holdover.evaluation.simulate.costs import Costs
from holdover.evaluation.simulate.serving import measure_served
from holdover.evaluation.traces.trace import Trace
from holdover.retention import RetentionPlan
from holdover.retention.decay import read_decay
from holdover.retention.plan_file import write_plan
from holdover.weights.source import resolve

# what the client of one run may take: a server that hangs must not take the machine's time
_PATIENCE = 900
# prefills of these lengths compile and tune what a run needs
_WARM = (1, 70, 1000, 4096)


@dataclass(frozen=True)
class Room:
    """What every arm has alike.

    Attributes:
        chunk_size: most tokens of a prefill forward while other requests wait.
        kv_budget: bytes for KV rows.
        threads: that torch computes with on a CPU.
    """

    chunk_size: int
    kv_budget: int
    threads: int

    def options(self, setup: Setup, budget: int, plan: RetentionPlan | None) -> EngineOptions:
        """An engine's options."""
        return EngineOptions(
            plan=plan,
            state_budget=budget,
            kv_budget=self.kv_budget,
            max_running=setup.server_limit,
            chunk_size=self.chunk_size,
            element=setup.element,
            refresh=setup.refresh,
            eviction=setup.eviction,
            # no arm has a log beside its states: all slots are checkpoints alike, as the paper's are
            decode="dense",
        )


class Servers:
    """Servers of one model, one at a time.

    Args:
        name: what the model is called.
        model: bundled model or directory.
        trace: what they are asked.
        trace_path: the file of it.
        room: what they have alike.
        clients: conversations under way at a time.
        ranks: processes that run the model together; None for this one alone.
    """

    def __init__(
        self, name: str, model: str, trace: Trace, trace_path: Path, room: Room, clients: int, ranks: Ranks | None
    ) -> None:
        self._name = name
        self._model = model
        self._trace = trace
        self._trace_path = trace_path
        self._room = room
        self._clients = clients
        self._ranks = ranks
        self._loaded: Loaded | None = None
        files = resolve(model)
        self._decay = read_decay(files)
        # as it will run
        dtype = None if torch.cuda.is_available() else "float32"
        self._checkpoint_bytes = layout_from_config(files.config, dtype=dtype).state.checkpoint_bytes

    @property
    def leads(self) -> bool:
        """Whether results are made here."""
        return self._ranks is None or self._ranks.leads

    def agreed(self, wanted: bool) -> bool:
        """What rank 0 wants."""
        return wanted if self._ranks is None else bool(self._ranks.least(int(wanted or not self.leads)))

    def budget(self, setup: Setup) -> int:
        """Bytes of state of a server, on each rank: its share of one dense checkpoint for every request."""
        return int(setup.share * self._trace.num_requests * self._checkpoint_bytes) // setup.ranks

    def costs(self, setup: Setup) -> Costs:
        """What the model's forwards and restores cost, and its server, for simulations."""
        engine, _ = self._engine(setup)
        with behind_port(engine, self._name) as (shared, url):
            return replace(measure_served(shared, url), model=self._name)

    def run(self, setup: Setup, seeds: Sequence[int]) -> list[Row]:
        """Rows of one server, one for each seed; on other ranks than 0 none.

        Raises:
            HoldoverError: a run did not come to its end, or holds more than its budget.
        """
        engine, measured = self._engine(setup)
        if not self.leads:
            engine.follow()
            return []
        budget, pools = self.budget(setup), serve_memory.pools(engine)
        with behind_port(engine, self._name) as (_, url):
            # one that is too large from the start is asked nothing
            serve_memory.check({"arm": setup.arm, "pool_bytes": pools}, budget, measured)
            rows = self._asked(url, setup, seeds)
        fixed = {
            "model": self._name,
            "w_max": setup.w_max,
            "element": setup.element,
            "placement": setup.placement,
            "ranks": setup.ranks,
            "eviction": setup.eviction,
            "share": setup.share,
            "trace": self._trace.digest,
            "chunk_size": self._room.chunk_size,
        }
        return [row | fixed | serve_memory.check(row, budget, measured) for row in rows]

    def _engine(self, setup: Setup) -> tuple[Engine, dict[str, int]]:
        """An engine that is ready, and what the GPU's allocator says of it."""
        plan = None if setup.w_max is None else RetentionPlan.of(self._decay, setup.w_max)
        options = self._room.options(setup, self.budget(setup), plan)
        is_gpu = torch.cuda.is_available()
        torch.set_num_threads(self._room.threads)
        if self._loaded is None or self._ranks is not None:
            self._loaded = self._load(setup, options)
        # what the engine before it held is free now
        gc.collect()
        before = torch.cuda.memory_allocated() if is_gpu else 0
        with nullcontext() if self._ranks is None else self._ranks.or_error():
            engine = Engine(self._loaded, options)
        measured = {"held": serve_memory.held(engine, before), "staged": serve_memory.staged(engine)} if is_gpu else {}
        if self.leads:
            _warm(engine)
        return engine, measured

    def _load(self, setup: Setup, options: EngineOptions) -> Loaded:
        """The model, or what this rank computes of it: placements differ in which heads those are."""
        if self._ranks is None:
            return load(self._model)
        # the part before it, before there are two
        self._loaded = None
        with tempfile.TemporaryDirectory() as folder:
            path = None
            if options.plan is not None:
                write_plan(options.plan, path := Path(folder) / "plan.safetensors")
            return load_shard(self._model, options, self._ranks, path, setup.placement)[0]

    def _asked(self, url: str, setup: Setup, seeds: Sequence[int]) -> list[Row]:
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "rows.json"
            command = [sys.executable, "-m", "holdover", "bench", "serve", url, "--trace", str(self._trace_path)]
            command += ["--arm", setup.arm, "--clients", str(self._clients), "--server-limit", str(setup.server_limit)]
            command += ["--seeds", ",".join(map(str, seeds)), "--stall", "120", "-o", str(output)]
            try:
                done = subprocess.run(command, check=False, cwd=ROOT, timeout=_PATIENCE)
            except subprocess.TimeoutExpired as error:
                raise HoldoverError(f"{setup.name} of {setup.model} took longer than {_PATIENCE} s") from error
            if done.returncode:
                raise HoldoverError(f"{setup.name} of {setup.model} was not measured to its end")
            rows: list[Row] = json.loads(output.read_text(encoding="utf-8"))["rows"]
            return rows


def _warm(engine: Engine) -> None:
    """Compile, tune and capture now what would make a run's first requests slow."""
    engine.warm_up()
    params = SamplingParams(max_tokens=2, temperature=1.0, ignore_eos=True)
    most = engine.prepare.max_context - 2
    prompts = [[5] * length for length in _WARM if length <= most]
    engine.generate(prompts, params, use_cache=False)
