"""Prompts over chunks, and the time until their first tokens: composed, and the same tokens prefilled in full."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdover import Engine, SamplingParams
from holdover.chunks import Chunk, ChunkOptions, Usage
from holdover.chunks.selectors import SELECTORS, SelectionContext, Selector
from holdover.engine.chunks.request import Part
from holdover.engine.chunks.settings import ChunkSettings
from holdover.engine.hf.loader import Loaded
from holdover.engine.options import EngineOptions
from holdover.engine.sequence import Sequence as EngineSequence
from holdover.prefix.policies import NoCheckpoints
from holdover.state import SlotPool
from holdover.store import KVPool

CHUNK, SYSTEM, SEPARATOR, QUERY = 512, 24, 2, 32
ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


@dataclass(frozen=True)
class Prompt:
    """A short system prompt, chunks with separators between them, and a query."""

    parts: tuple[Part, ...]
    query: tuple[int, ...]

    @property
    def chunks(self) -> list[Chunk]:
        return [part for part in self.parts if isinstance(part, Chunk)]

    @property
    def tokens(self) -> list[int]:
        """All of them, as an ordinary prompt."""
        parts: list[Any] = [part.tokens if isinstance(part, Chunk) else part for part in self.parts]
        return [token for part in (*parts, self.query) for token in part]


@dataclass(frozen=True)
class Asked:
    """What a batch of requests took.

    Attributes:
        ms: until the first token of each.
        usage: tokens of the first one's chunks by what was done for them; None where nothing was composed.
    """

    ms: list[float]
    usage: Usage | None


class Paired:
    """A selector that chooses what it chose first, at the same cost: for pairs on an identical selection."""

    def __init__(self, inner: Selector) -> None:
        self.probe = inner.probe
        self._inner = inner
        self._chosen: tuple[int, ...] | None = None

    def select(self, context: SelectionContext) -> tuple[int, ...]:
        chosen = self._inner.select(context)
        if self._chosen is None:
            self._chosen = chosen
        return self._chosen


def prompts_of(context: int, count: int, vocabulary: int) -> list[Prompt]:
    """Prompts over the same chunks in different order, each with its first token as long as the context."""
    draw = random.Random(context)

    def tokens(length: int) -> tuple[int, ...]:
        return tuple(draw.randrange(3, vocabulary) for _ in range(length))

    chunks, left = [], context - 1 - SYSTEM - QUERY
    while left > SEPARATOR:
        chunks.append(Chunk(tokens(min(CHUNK, left - SEPARATOR))))
        left -= len(chunks[-1].tokens) + SEPARATOR
    system, separator, query = tokens(SYSTEM + left), tokens(SEPARATOR), tokens(QUERY)
    orders = [chunks[i:] + chunks[:i] for i in range(count)]
    return [Prompt((system, *(p for chunk in order for p in (chunk, separator))), query) for order in orders]


def engine_for(
    loaded: Loaded, context: int, batch: int, *, transitions: bool = True, host_budget: int | None = None
) -> Engine:
    """An engine with room for the chunks of one context and a batch of requests, that keeps nothing else.

    Args:
        loaded: the model.
        context: tokens of a prompt and its first token.
        batch: requests that run together.
        transitions: whether chunks are kept with what ``exact`` needs; a host tier keeps none.
        host_budget: bytes of the host tier, if there is one.
    """
    layout, chunks = loaded.host.layout, 1 + context // CHUNK
    rows = (batch + 2) * context
    slots = chunks + 2 * batch + 6
    settings = ChunkSettings(
        rows=context, extra_bytes=32 << 30, extras=ChunkOptions(transitions=transitions), tokens=CHUNK
    )
    options = EngineOptions(
        dtype=loaded.dtype,
        max_running=batch,
        max_context=context,
        state_budget=SlotPool.bytes_for(layout.state, slots),
        kv_budget=KVPool.bytes_for(layout.kv, rows) + 4 * (batch + 1) * context,
        host_budget=host_budget,
        # nothing is found again but chunks
        policy=NoCheckpoints(),
        decode="dense",
        chunks=settings,
    )
    return Engine(loaded, options)


def host_bytes(loaded: Loaded, context: int) -> int:
    """Host memory that a context's chunks take, and a quarter more."""
    layout = loaded.host.layout
    states = (1 + context // CHUNK) * layout.state.checkpoint_bytes
    return (states + context * layout.kv.bytes_per_token) * 5 // 4


def build(engine: Engine, prompt: Prompt) -> None:
    """Build a prompt's chunks, and wait until they are written wherever they are kept."""
    for chunk in prompt.chunks:
        engine.add_chunk(chunk.tokens)
    if engine.core.spill is not None:
        engine.core.spill.writer.drain()


def full(engine: Engine, prompts: Sequence[Prompt]) -> Callable[[], Asked]:
    """Prefill everything."""
    return lambda: _ask(engine, prompts, lambda prompt: engine.prepare.sequence(prompt.tokens, ONE_TOKEN))


def composed(
    engine: Engine, prompts: Sequence[Prompt], selector: Any, initialiser: str, ratio: float
) -> Callable[[], Asked]:
    """Compose; where there is a host tier, chunks are there and nowhere else before each request."""
    choice = {"selector": selector, "initialiser": initialiser, "ratio": ratio}

    def make(prompt: Prompt) -> EngineSequence:
        return engine.prepare.composed(prompt.parts, prompt.query, ONE_TOKEN, engine.options.chunks, **choice)

    def run() -> Asked:
        store = engine.core.chunks.store
        built = store.counters["chunks_built"]
        if engine.core.spill is not None:
            store.flush()
        asked = _ask(engine, prompts, make)
        assert store.counters["chunks_built"] == built, "a chunk was built within the time to the first token"
        assert asked.usage is not None
        assert asked.usage.reused, "nothing was reused"
        return asked

    return run


def paired(name: str) -> Paired:
    """A selector by name that all arms of a pair share."""
    return Paired(SELECTORS[name]())


def _ask(engine: Engine, prompts: Sequence[Prompt], make: Callable[[Prompt], EngineSequence]) -> Asked:
    """Send requests together and step until each has its first token, which is its last."""
    core, start = engine.core, time.perf_counter()
    sequences = [make(prompt) for prompt in prompts]
    for sequence in sequences:
        core.add(sequence)
    ms: dict[str, float] = {}
    while len(ms) < len(sequences):
        for update in core.step():
            if update.output is not None:
                if update.output.error is not None:
                    raise update.output.error
                ms[update.request_id] = 1000 * (time.perf_counter() - start)
    repair = sequences[0].repair
    return Asked(list(ms.values()), None if repair is None else repair.usage)
