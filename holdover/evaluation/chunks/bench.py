"""Prompts over chunks on pools of their own: composed in any way, beside the same prompt computed in full.

The chunks of a prompt are built once, whatever is then done with them; composing is the engine's own code.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from holdover.chunks import (
    ChunkEntry,
    ChunkOptions,
    ChunkStore,
    Extras,
    Initialiser,
    Repair,
    StateErrors,
    layer_frequencies,
    relocate,
    state_errors,
)
from holdover.chunks.initialiser import SeededRandom
from holdover.chunks.selectors import Probe, SelectionContext, Selector
from holdover.codec import Codec
from holdover.engine.chunks.prefill import ChunkPrefill
from holdover.engine.chunks.probe import context_deviation, query_attention
from holdover.engine.chunks.repair import Site, repair_context
from holdover.engine.chunks.request import Composition, Window, compose
from holdover.engine.host import Host
from holdover.engine.runner import Runner
from holdover.engine.step import Span
from holdover.errors import ConfigError
from holdover.evaluation.chunks.case import Case
from holdover.evaluation.chunks.view import MOST, Side, View
from holdover.state import SlotPool
from holdover.store import KVPool, PackedPool, SlotAllocator, StateTiers, TierOptions

_NAMESPACE = b"evaluation"
_SALT = "evaluation"
# the true state, the composed one, and two to work with
_SLOTS = 4


@dataclass(frozen=True)
class Positions:
    """Selects the positions that it is given, so that what else differs is compared on the same ones."""

    positions: tuple[int, ...]
    probe: ClassVar[Probe] = "none"

    def select(self, context: SelectionContext) -> tuple[int, ...]:
        """See `Selector.select`."""
        return self.positions


class Workbench:
    """Takes one case at a time; see `open`.

    Args:
        host: the model.
        cases: what will be opened; they say how large the pools have to be.
        extras: what is kept of chunks.
        codec: how their states are packed; None to keep them as they are.

    Raises:
        ConfigError: a case does not fit into the model's context, or the model's keys cannot be moved.
    """

    def __init__(self, host: Host, cases: Sequence[Case], extras: ChunkOptions, codec: Codec | None = None) -> None:
        longest = max(len(case) for case in cases)
        if longest > host.layout.max_context:
            raise ConfigError(f"{longest} tokens do not fit into the model's context of {host.layout.max_context}")
        state, lengths = host.layout.state, [[len(chunk) for chunk in case.chunks] for case in cases]
        rows = max(map(sum, lengths))
        self._native = SlotAllocator(SlotPool(state, _SLOTS + max(map(len, lengths)), host.device))
        self._pool = self._native.pool
        self._kv = KVPool(host.layout.kv, rows + 2 * longest, host.device)
        self._tiers = _tiers(self._native, codec, max(map(len, lengths)))
        room = max(sum(Extras.bytes_for(state, extras, length) for length in case) for case in lengths)
        self._store = ChunkStore(self._tiers, self._kv, extras, max_rows=rows, max_extra_bytes=room)
        self._runner = Runner(host, self._pool, self._kv)
        self._rotations = layer_frequencies(host.layout.kv, self._kv.device, host.rope_parameters)
        self._true, self._composed, self._scratch, self._work = (self._native.acquire().slot for _ in range(_SLOTS))
        self._true_rows, self._rows = self._kv.allocate(longest), self._kv.allocate(longest)
        self._entries: list[ChunkEntry] = []

    @property
    def counters(self) -> Counter[str]:
        """Of chunks that were built and evicted."""
        return self._store.counters

    @property
    def view(self) -> View:
        """The case that was opened and what was composed of it, for those who compare more than logits."""
        true, made = Side(self._true, self._true_rows), Side(self._composed, self._rows)
        return View(self._runner, self._tiers, self._entries, self._assembly, true, made, self._scratch, self._work)

    def open(self, case: Case, number: int = 0) -> float:
        """Turn to a case: build its chunks, and compute its context in full.

        Args:
            case: the case.
            number: seed of the initialiser ``random``.

        Returns:
            Seconds that the full computation took.
        """
        self._store.flush()
        self._case, self._number = case, number
        self._assembly = self._composition("none", "last", 0.0).assembly
        self._entries = [self._entry(tokens) for tokens in case.chunks]
        start = now(self._pool.device)
        self._prefill(self._true, self._true_rows)
        return now(self._pool.device) - start

    def exact(self) -> torch.Tensor:
        """Logits after the query and after every following token but the last, fp32 ``[following or 1, V]``."""
        self._pool.copy(self._true, self._work)
        return self._read(self._work, self._true_rows)

    def choose(self, selector: str | Selector, ratio: float) -> tuple[int, ...]:
        """Positions that a selector chooses; one that reads the query does so from the last chunk's state."""
        composition = self._composition(selector, "last", ratio)
        return composition.selector.select(self._probe(composition))

    def compose(self, positions: Sequence[int], initialiser: str, window: Window = "stream") -> Repair:
        """Compose the context with these positions run again.

        Args:
            positions: ascending, within chunks.
            initialiser: as a request names it.
            window: what recomputed tokens see in their conv windows; with ``seams``, ``stream``.

        Returns:
            What was run; with the initialiser ``seams`` also the chunks' first tokens.
        """
        composition = self._composition(Positions(tuple(positions)), initialiser, 0.0, window)
        repair = composition.choose(SelectionContext(self._assembly, 0.0), self._pool.layout)
        if repair.is_full:
            self._prefill(self._composed, self._rows)
        else:
            copies = self._assembly.copies if composition.runs_seams else repair.copies
            relocate(self._kv, self._entries, copies, self._rows, self._rotations)
            self._repair(composition, repair, self._composed)
        return repair

    def composed(self) -> torch.Tensor:
        """As `exact`, on top of what was composed, which is used up."""
        return self._read(self._composed, self._rows)

    def errors(self) -> StateErrors:
        """How far the composed state is from the true one."""
        return state_errors(self._pool, self._composed, self._true)

    def _composition(
        self, selector: str | Selector, initialiser: str, ratio: float, window: Window = "stream"
    ) -> Composition:
        chosen: str | Initialiser = SeededRandom(self._number) if initialiser == "random" else initialiser
        case = self._case
        return compose(
            case.parts,
            case.query,
            _ids,
            selector=selector,
            initialiser=chosen,
            ratio=ratio,
            window=window,
            extras=self._store.options,
        )

    def _entry(self, tokens: Sequence[int]) -> ChunkEntry:
        if (found := self._store.find(_NAMESPACE, tokens)) is not None:
            return found
        prefill = ChunkPrefill(self._runner, self._store, _NAMESPACE, tokens)
        while (entry := prefill.advance(MOST)) is None:
            pass
        return entry

    def _prefill(self, slot: int, rows: torch.Tensor) -> None:
        """Compute the whole context as an ordinary prompt."""
        self._pool.reset(slot, _NAMESPACE)
        end = self._assembly.query.start
        for start in range(0, end, MOST):
            stop = min(end, start + MOST)
            self._runner.run([Span(slot, self._assembly.tokens[start:stop], start, rows[:stop])])

    def _probe(self, composition: Composition) -> SelectionContext:
        assembly, ratio, probe = self._assembly, composition.ratio, composition.selector.probe
        if probe == "none":
            return SelectionContext(assembly, ratio)
        relocate(self._kv, self._entries, assembly.copies, self._rows, self._rotations)
        if probe == "context":
            deviation = context_deviation(self._runner, assembly, self._rows, self._scratch)
            return SelectionContext(assembly, ratio, deviation=deviation)
        self._repair(composition, assembly.repair(()), self._work)
        rows = self._rows[: len(assembly.tokens)]
        attention = query_attention(self._runner, assembly, rows, self._work, MOST)
        return SelectionContext(assembly, ratio, attention=attention)

    def _repair(self, composition: Composition, repair: Repair, slot: int) -> None:
        site = Site(self._runner, self._tiers, self._entries, self._rows, self._scratch, MOST)
        repair_context(site, composition, repair, slot, _NAMESPACE, _SALT)

    def _read(self, slot: int, rows: torch.Tensor) -> torch.Tensor:
        start, case = self._assembly.query.start, self._case
        tokens = (*case.query, *case.following[:-1])
        span = Span(slot, tokens, start, rows[: start + len(tokens)])
        logits = self._runner.run([span], logits=max(1, len(case.following))).logits
        assert logits is not None
        return logits[0]


def now(device: torch.device) -> float:
    """Seconds of a clock, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _tiers(native: SlotAllocator[SlotPool], codec: Codec | None, chunks: int) -> StateTiers:
    if codec is None:
        return StateTiers(native)
    packed = SlotAllocator(PackedPool(codec, chunks, native.pool.device), "compressed")
    return StateTiers(native, packed, options=TierOptions(dense_spill=False))


def _ids(part: str | Iterable[int]) -> tuple[int, ...]:
    assert not isinstance(part, str)
    return tuple(part)
