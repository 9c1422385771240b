"""The state and the rows of a composed context: what is run of it, in which order, and on top of what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from holdover.chunks import CachedInputs, ChunkEntry, Repair, follow, pass_over, rejoin, seam_length, seed
from holdover.engine.chunks.request import Composition
from holdover.engine.runner import Runner
from holdover.engine.step import KVMode, Span
from holdover.state import KeyChain, Lineage
from holdover.state.key import chain_of
from holdover.store import StateTiers


@dataclass(frozen=True)
class Site:
    """Where a context is composed.

    Attributes:
        runner: the model on its pools.
        tiers: where the chunks' states are.
        entries: the prompt's chunks in order, pinned.
        rows: row of every position, the request's own.
        scratch: a slot for whoever needs one.
        most: tokens of one forward.
    """

    runner: Runner
    tiers: StateTiers
    entries: Sequence[ChunkEntry]
    rows: torch.Tensor
    scratch: int
    most: int

    def run(self, slot: int, tokens: Sequence[int], positions: Sequence[int]) -> None:
        """Run ``tokens[p]`` for ascending positions p, over the rows that they have."""
        for start in range(0, len(positions), self.most):
            places = positions[start : start + self.most]
            own, rows = [tokens[p] for p in places], self.rows[: places[-1] + 1]
            self.runner.run([Span(slot, own, places[0], rows, positions=places)], kv=KVMode.OVERWRITE)


def repair_context(
    site: Site, composition: Composition, repair: Repair, slot: int, namespace: bytes, salt: str
) -> Lineage:
    """Compose a context: afterwards the slot is the state of all its tokens in ``namespace``, and the rows are whole.

    Mutates slot, scratch and the rows of what is run; kept rows must be in place.

    Returns:
        The state's lineage.

    Raises:
        RequestError: a chunk was kept without what it takes.
    """
    pool, tokens, end = site.tiers.native.pool, repair.assembly.tokens, repair.assembly.query.start
    at = KeyChain(namespace)
    lineage = seed(composition.initialiser, site.tiers, site.entries, slot, site.scratch, at=at, salt=salt)
    if composition.runs_seams:
        _run_seams(site, composition, repair, slot)
    elif composition.window == "stream":
        _run_stream(site, repair, slot)
    else:
        _run_in_context(site, repair, slot)
    pool.settle([slot])
    pool.adopt(slot, chain_of(namespace, tokens[:end]), lineage)
    return lineage


def _run_stream(site: Site, repair: Repair, slot: int) -> None:
    """Recomputed tokens see each other only (LinearKV, Alg. 1), and the query its true predecessors."""
    site.run(slot, repair.assembly.tokens, sorted(repair.positions))
    rejoin(site.tiers.native.pool, slot, _cached(site, repair, [repair.assembly.query.start]))


def _run_in_context(site: Site, repair: Repair, slot: int) -> None:
    """Every token sees its true predecessors: what was skipped is taken from the chunks."""
    pool, stop, query = site.tiers.native.pool, 0, repair.assembly.query.start
    cached = _cached(site, repair, [*(run.start for run in repair.runs), query])
    for run in repair.runs:
        follow(pool, slot, cached, stop, run.start)
        site.run(slot, repair.assembly.tokens, run)
        stop = run.stop
    follow(pool, slot, cached, stop, query)


def _run_seams(site: Site, composition: Composition, repair: Repair, slot: int) -> None:
    """Alternate: text and a chunk's first tokens are run, then the map of the chunk's others is applied.

    What was selected beyond that is run on top, and leaves the window as it was.
    """
    assembly, pool = repair.assembly, site.tiers.native.pool
    done, reach = 0, seam_length(pool.layout)
    for (start, stop), entry in zip(assembly.chunks, site.entries, strict=True):
        site.run(slot, assembly.tokens, range(done, min(start + reach, stop)))
        pass_over(site.tiers, entry, slot, site.scratch)
        done = stop
    site.run(slot, assembly.tokens, range(done, assembly.query.start))
    pool.settle([slot])
    windows = [(pool.conv(x.index)[slot], pool.conv(x.index)[slot].clone()) for x in pool.layout.layers]
    seams = set(composition.seams(pool.layout))
    site.run(slot, assembly.tokens, [p for p in repair.selected if p not in seams])
    pool.settle([slot])
    for window, true in windows:
        window.copy_(true)


def _cached(site: Site, repair: Repair, starts: Sequence[int]) -> CachedInputs:
    return CachedInputs.read(repair, site.entries, starts, site.tiers, site.scratch)
