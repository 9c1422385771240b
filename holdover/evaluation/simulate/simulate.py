"""One simulation: an engine on a model that computes nothing, and what its cache did for a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdover.arch.layout import ModelLayout
from holdover.engine.build import build_core
from holdover.engine.core import EngineCore
from holdover.engine.options import EngineOptions
from holdover.engine.prepare import Preparer
from holdover.engine.sampling import SamplingDefaults
from holdover.evaluation.latency import mean, percentile
from holdover.evaluation.simulate.costs import Costs
from holdover.evaluation.simulate.host import Clock, SimulatedDecoder, SimulatedHost
from holdover.evaluation.simulate.replay import Served, replay
from holdover.evaluation.traces.exchanges import Exchange


@dataclass(frozen=True)
class Prediction:
    """What a simulation found.

    Attributes:
        native_slots: state slots of running sequences and dense checkpoints.
        packed_slots: slots of compressed checkpoints.
        rows: KV rows.
        hit: share of all prompt tokens that were not computed.
        ttft_mean_ms: over all requests, misses included.
        ttft_p95_ms: likewise.
        e2e_mean_ms: likewise.
        e2e_p95_ms: likewise.
        states_evicted: checkpoints evicted.
        rows_evicted: KV rows evicted.
        demotions: checkpoints moved from native to packed slots.
        restores: requests that resumed, by tier.
        refresh_tokens: tokens replayed for omitted units.
    """

    native_slots: int
    packed_slots: int
    rows: int
    hit: float
    ttft_mean_ms: float
    ttft_p95_ms: float
    e2e_mean_ms: float
    e2e_p95_ms: float
    states_evicted: int
    rows_evicted: int
    demotions: int
    restores: dict[str, int]
    refresh_tokens: int


class VirtualTime:
    """Time of a simulation, in which restores and a server's work take what they cost, after the step they belong to.

    Args:
        clock: what forwards advance.
        costs: what the rest costs.
    """

    def __init__(self, clock: Clock, costs: Costs) -> None:
        self._clock = clock
        self._serving = costs.serving
        # requests are read one after another: when the last one that was sent has been
        self._read = 0.0
        # when the step under way began, or the next one does
        self._begun = 0.0
        self._each = {"native": costs.copy_ms, "compressed": costs.unpack_ms}
        self._seen = {"native": 0, "compressed": 0}

    @property
    def ms(self) -> float:
        """Now."""
        return self._clock.ms

    def sent(self, prompt: int) -> float:
        """The server reads a request once it has read those before it; milliseconds until the engine sees it."""
        self._read = max(self.ms, self._read) + self._serving.request
        return self._read - self.ms + self._serving.prompt_token * prompt

    def wait(self, until: float) -> None:
        """Nothing happens up to then but what the server does."""
        self._clock.ms = self._begun = max(self._clock.ms, until)

    def stepped(self, core: EngineCore, tokens: int) -> None:
        """Charge what was restored since the step before, what the server read meanwhile, and what it sends now."""
        tiers = core.cache.tiers
        self._charge("native", core, tiers.checkpoint_bytes("native"))
        self._charge("compressed", core, tiers.checkpoint_bytes("compressed"))
        self._clock.ms += max(0.0, self._read - self._begun) + tokens * self._serving.token
        self._begun = self._clock.ms

    def _charge(self, tier: str, core: EngineCore, nbytes: int) -> None:
        count = core.stats.hits[tier]
        self._clock.ms += (count - self._seen[tier]) * nbytes * self._each[tier]
        self._seen[tier] = count


@dataclass(frozen=True)
class Simulated:
    """An engine's loop on a model that computes nothing.

    Attributes:
        core: the loop.
        prepare: makes its requests.
        timer: its time.
    """

    core: EngineCore
    prepare: Preparer
    timer: VirtualTime


class _NoText:
    """Stands for a tokenizer: nobody reads what is said."""

    def encode(self, text: str) -> list[int]:
        return []

    encode_part = encode

    def decode(self, ids: Sequence[int]) -> str:
        return ""

    @property
    def verbatim(self) -> _NoText:
        return self


def build(layout: ModelLayout, options: EngineOptions, costs: Costs) -> Simulated:
    """Build an engine's loop for a simulation.

    Args:
        layout: the model's layout, in the dtype it runs in.
        options: the engine's; ``dtype`` and ``device`` are of no account, shelves and drafts are not simulated.
        costs: what forwards, restores and a server cost.

    Raises:
        ConfigError: a budget is too small for one sequence.
    """
    clock = Clock()
    host = SimulatedHost(layout, costs, clock)
    core, max_context = build_core(host, options)
    core.runner.decoder = SimulatedDecoder(host, costs, clock)
    prepare = Preparer(
        _NoText(),
        digest="simulated",
        defaults=SamplingDefaults(),
        end_tokens=frozenset(),
        max_context=max_context,
        vocab_size=layout.vocab_size,
    )
    return Simulated(core, prepare, VirtualTime(clock, costs))


def simulate(
    layout: ModelLayout,
    options: EngineOptions,
    dialogues: Sequence[Sequence[Exchange]],
    *,
    clients: int,
    costs: Costs,
) -> Prediction:
    """Replay conversations through an engine's own loop and cache.

    Args:
        layout: as for `build`.
        options: likewise.
        dialogues: conversations, in the order in which they start.
        clients: conversations under way at a time.
        costs: what forwards, restores and a server cost.

    Raises:
        ConfigError: a budget is too small for one sequence.
        HoldoverError: a request could not be served within the budgets.
    """
    simulated = build(layout, options, costs)
    core = simulated.core
    try:
        served = replay(core, simulated.prepare, dialogues, clients, simulated.timer)
        core.check_integrity()
    finally:
        core.close()
    return _prediction(core, served)


def _prediction(core: EngineCore, served: Sequence[Served]) -> Prediction:
    tiers, counters, stats = core.cache.tiers, core.cache.counters, core.stats
    first, whole = [one.ttft_ms for one in served], [one.e2e_ms for one in served]
    return Prediction(
        native_slots=tiers.native.pool.num_slots,
        packed_slots=0 if tiers.packed is None else tiers.packed.pool.num_slots,
        rows=core.cache.kv.num_rows,
        hit=sum(one.hit for one in served) / sum(one.prompt for one in served),
        ttft_mean_ms=mean(first),
        ttft_p95_ms=percentile(first, 95),
        e2e_mean_ms=mean(whole),
        e2e_p95_ms=percentile(whole, 95),
        states_evicted=counters["states_evicted"],
        rows_evicted=counters["rows_evicted"],
        demotions=counters["demotions"],
        restores={tier: stats.hits[tier] for tier in ("native", "compressed")},
        refresh_tokens=stats.refresh_tokens,
    )
