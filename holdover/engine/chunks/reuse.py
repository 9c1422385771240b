"""Admission of requests over chunks: their chunks are built or held, then the context is composed in one go.

What comes out is an ordinary sequence with the context computed, in a namespace of its composition. One request is
composed at a time: the first in the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property

import torch

from holdover.chunks import (
    ChunkEntry,
    ChunkSpill,
    ChunkStore,
    Hold,
    check_integrity,
    composed_namespace,
    layer_frequencies,
    relocate,
)
from holdover.chunks.selectors import SelectionContext
from holdover.engine.chunks.builds import BuildJob, Builds
from holdover.engine.chunks.probe import context_deviation, query_attention
from holdover.engine.chunks.repair import Site, repair_context
from holdover.engine.chunks.request import Composition
from holdover.engine.residence import Residence
from holdover.engine.runner import Runner
from holdover.engine.sequence import Sequence as EngineSequence
from holdover.prefix import Match
from holdover.store import Checkpoint, LeaseState


class ChunkReuse:
    """Used by the engine thread only.

    Args:
        runner: the model on its pools.
        residence: where sequences get their slots and rows.
        store: the chunks.
    """

    def __init__(self, runner: Runner, residence: Residence, store: ChunkStore) -> None:
        self.store = store
        spill = residence.spill
        self.builds = Builds(runner, store, None if spill is None else ChunkSpill(store, spill.shelves, spill.writer))
        self._runner, self._residence = runner, residence
        # the request that is next to be composed, what it holds, and what it waits for
        self._owner: EngineSequence | None = None
        self._holds: dict[tuple[int, ...], Hold] = {}
        self._job: BuildJob | None = None

    @cached_property
    def rotations(self) -> Mapping[int, torch.Tensor]:
        """Frequencies of the layers that rotate their keys.

        Raises:
            ConfigError: keys of this model cannot be moved.
        """
        kv, parameters = self.store.kv, self._runner.host.rope_parameters
        return layer_frequencies(kv.layout, kv.device, parameters)

    def enter(self, sequence: EngineSequence, most: int) -> Match | None:
        """Let a request over chunks start; see `Residence.enter`.

        Args:
            sequence: the first in the queue.
            most: tokens of one forward.

        Returns:
            What was found of it in the cache, nothing if it was composed; None if it waits for a chunk.

        Raises:
            CapacityError: rows or slots are lacking; it owns nothing but its hold on chunks.
            HoldoverError: a chunk could not be built, or the request cannot be composed; it owns nothing.
        """
        composition = _composition_of(sequence)
        if sequence.repair is None and composition.selector.probe == "none":
            self._choose(sequence, SelectionContext(composition.assembly, composition.ratio))
        if sequence.repair is not None and (sequence.repair.is_full or self._residence.find(sequence).node is not None):
            self.forget(sequence)
            return self._residence.enter(sequence)
        entries = self._gather(sequence, composition)
        if entries is None:
            return None
        match = self._compose(sequence, composition, entries, most)
        self.forget(sequence)
        return match

    def build(self, most: int, *, may_wait: bool) -> None:
        """Run up to ``most`` tokens of a chunk that somebody wants, if there is one; see `Builds.advance`."""
        if self.builds:
            self.builds.advance(most, may_wait=may_wait)

    def forget(self, sequence: EngineSequence) -> None:
        """Let go of what a request holds."""
        if self._owner is sequence:
            self._let_go()

    def give_up(self, sequence: EngineSequence | None = None) -> bool:
        """Give back what is held for requests that do not run, other than ``sequence``, and for a build under way.

        They begin again when there is room. Whether anything was given back.
        """
        held = bool(self._holds) and self._owner is not sequence
        if held:
            self._let_go()
        return self.builds.interrupt() or held

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The chunks' states."""
        return [entry.checkpoint for entry in self.store.entries.values()]

    def check_integrity(self) -> None:
        """Verify the store against what is held.

        Raises:
            IntegrityError: with what leaked.
        """
        check_integrity(self.store, list(self._holds.values()))

    def _gather(self, sequence: EngineSequence, composition: Composition) -> list[ChunkEntry] | None:
        """The prompt's chunks, held; None while one is being built."""
        if self._owner is not sequence:
            self._let_go()
            self._owner = sequence
        if self._job is not None and self._job.error is not None:
            error = self._job.error
            self._let_go()
            raise error
        namespace = sequence.tenant
        for tokens in composition.chunks:
            if tokens in self._holds:
                continue
            if (entry := self.builds.find(namespace, tokens)) is None:
                self._job = self.builds.want(namespace, tokens)
                return None
            # at once: what was built first must not make room for what is built next
            self._holds[tokens] = self.store.hold([entry])
        return [self._holds[tokens].entries[0] for tokens in composition.chunks]

    def _compose(
        self, sequence: EngineSequence, composition: Composition, entries: Sequence[ChunkEntry], most: int
    ) -> Match:
        kv, tiers, assembly = self.store.kv, self.store.tiers, composition.assembly
        with ExitStack() as owned:
            rows = self._residence.cache.rows.allocate(len(assembly.tokens))
            owned_rows = owned.enter_context(ExitStack())
            owned_rows.callback(kv.free, rows)
            scratch = tiers.acquire(LeaseState.LIVE)
            owned.callback(scratch.release)
            site = Site(self._runner, tiers, entries, rows, scratch.slot, most)
            # whole where rows are read that are run again later: by a probe, or by seams behind them
            is_whole = sequence.repair is None or composition.runs_seams
            relocate(kv, entries, (assembly if is_whole else sequence.chosen).copies, rows, self.rotations)
            if sequence.repair is None:
                self._choose(sequence, self._probe(composition, site))
            match = self._residence.enter(sequence)
            if match.node is not None or sequence.chosen.is_full:
                # somebody has composed the same before, or nothing is left to reuse
                return match
            sequence.place.rows.extend(rows)
            owned_rows.pop_all()
            try:
                self._repair(sequence, composition, site)
            except BaseException:
                self._residence.leave(sequence, keep=False)
                raise
            return match

    def _repair(self, sequence: EngineSequence, composition: Composition, site: Site) -> None:
        """Compose the context in the place that the sequence was given."""
        repair, place = sequence.chosen, sequence.place
        lineage = repair_context(
            site, composition, repair, place.lease.slot, sequence.namespace, composition.salt(repair)
        )
        for entry in set(site.entries):
            entry.checkpoint.hits += 1
        place.hold.lineage = lineage
        sequence.computed = repair.assembly.query.start

    def _choose(self, sequence: EngineSequence, context: SelectionContext) -> None:
        """Let the selector choose, once for good: with it the namespace is known."""
        composition = _composition_of(sequence)
        sequence.repair = repair = composition.choose(context, self.store.tiers.native.pool.layout)
        if not repair.is_full:
            sequence.namespace = composed_namespace(sequence.tenant, composition.salt(repair))

    def _probe(self, composition: Composition, site: Site) -> SelectionContext:
        """Run what the selector asks for, on rows that hold every chunk whole."""
        assembly, ratio = composition.assembly, composition.ratio
        if composition.selector.probe == "context":
            deviation = context_deviation(self._runner, assembly, site.rows, site.scratch)
            return SelectionContext(assembly, ratio, deviation=deviation)
        lease = self.store.tiers.acquire(LeaseState.LIVE)
        try:
            # as if nothing were selected
            repair = assembly.repair(composition.seams(self.store.tiers.native.pool.layout))
            repair_context(site, composition, repair, lease.slot, b"probe", "probe")
            attention = query_attention(self._runner, assembly, site.rows, lease.slot, site.most)
        finally:
            lease.release()
        return SelectionContext(assembly, ratio, attention=attention)

    def _let_go(self) -> None:
        for hold in self._holds.values():
            self.store.release(hold)
        self._holds, self._owner, self._job = {}, None, None


def _composition_of(sequence: EngineSequence) -> Composition:
    composition = sequence.request.composition
    assert composition is not None
    return composition
