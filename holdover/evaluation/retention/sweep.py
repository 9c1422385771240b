"""What it costs to resume from packed checkpoints, on real text, at every operating point of a sweep.

The text is cut into pieces. Through each, an exact sequence runs; at certain depths, its state is packed, restored (and
its suffix replayed) as the engine does it, and the next tokens of the text run from every restored state. Their
distributions are compared with the exact sequence's own, which goes on through the same tokens: so exact work is done
once for all points.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdover.codec import Codec
from holdover.engine.host import Host
from holdover.engine.refresh import SuffixRefresh
from holdover.engine.step import Span
from holdover.evaluation.retention.design import Design
from holdover.evaluation.retention.points import Samples, kl_divergence, layer_errors
from holdover.evaluation.retention.session import Session
from holdover.retention import Element, RefreshPolicy, RetentionPlan
from holdover.store import PackedPool, SlotAllocator, StateTiers

ELEMENTS: tuple[Element, ...] = ("full", "int8")
REFRESHES: tuple[RefreshPolicy, ...] = ("none", "suffix")


def measure(
    host: Host, plans: Sequence[RetentionPlan], tokens: Sequence[int], design: Design
) -> Iterator[list[Samples]]:
    """Measure every operating point of some plans: yields all samples so far after each continuation.

    Args:
        host: the model.
        plans: one for each cutoff.
        tokens: the text.
        design: where states are resumed; it has been checked.
    """
    points = len(ELEMENTS) * len(REFRESHES)
    # beside the sequence's: one as it was, one a point, one for each plan's replays
    session = Session(host, design.piece, spare_slots=1 + points + len(plans), spare_rows=points * design.tokens)
    kept = session.native.acquire().slot
    lanes = [_Lane(session.native.acquire().slot, session.kv.allocate(design.tokens)) for _ in range(points)]
    trials = [_Trial(session, plan, lanes) for plan in plans]
    for piece in range(design.pieces):
        text = tokens[piece * design.piece : (piece + 1) * design.piece]
        session.restart()
        for depth in design.depths:
            session.read(text[len(session.tokens) : depth])
            session.native.pool.copy(session.slot, kept)
            prefix = _Prefix(kept, text[:depth], session.rows)
            following = text[depth : depth + design.tokens]
            exact = session.score(following)
            for trial in trials:
                trial.run(prefix, following, exact)
            yield [samples for trial in trials for samples in trial.samples]


@dataclass(frozen=True)
class _Prefix:
    """A computed prefix: the slot of its exact state, its tokens, and the row of each."""

    slot: int
    tokens: Sequence[int]
    rows: Tensor


@dataclass(frozen=True)
class _Lane:
    """A slot for one restored state, and rows for the tokens that run from it."""

    slot: int
    rows: Tensor


class _Trial:
    """The operating points of one plan: every element, without and with refresh.

    Args:
        session: where everything runs; a slot of it is taken for replays.
        plan: the plan.
        lanes: one for each point; other trials may use the same.
    """

    def __init__(self, session: Session, plan: RetentionPlan, lanes: Sequence[_Lane]) -> None:
        self._session = session
        self._tiers = {element: _tiers(session, plan, element) for element in ELEMENTS}
        # the replay does not depend on how retained units are stored
        self._refresh = SuffixRefresh(session.runner, self._tiers["full"], plan)
        self.samples = [
            Samples(plan.w_max, refresh, element, self._tiers[element].codec.nbytes)
            for refresh in REFRESHES
            for element in ELEMENTS
        ]
        self._lanes = dict(zip(((s.refresh, s.element) for s in self.samples), lanes, strict=True))

    def run(self, prefix: _Prefix, following: Sequence[int], exact: Tensor) -> None:
        """Restore the prefix's state at every point and run what follows; ``exact`` are its logits ``[tokens, V]``."""
        times = self._restore(prefix)
        wanted = self._state(prefix.slot)
        lanes = self._lanes.values()
        errors = [layer_errors(self._state(lane.slot), wanted) for lane in lanes]
        spans = [Span(lane.slot, following, len(prefix.tokens), torch.cat([prefix.rows, lane.rows])) for lane in lanes]
        logits = self._session.runner.run(spans, logits=None).logits
        assert logits is not None
        for i, samples in enumerate(self.samples):
            samples.kl.append(kl_divergence(exact, logits[i]).cpu())
            samples.errors.append(errors[i])
            samples.seconds.append(times[i])

    def _restore(self, prefix: _Prefix) -> list[float]:
        """Pack the prefix's state and restore it at every point, each in its lane; seconds that each restore took."""
        unpacked = {point: self._unpack(prefix.slot, point[1], lane.slot) for point, lane in self._lanes.items()}
        refreshed = self._lanes["suffix", "full"].slot
        start = self._now()
        self._refresh.run(refreshed, prefix.tokens, prefix.rows)
        replay = self._now() - start
        for element in ELEMENTS[1:]:
            self._tiers[element].copy_refreshed(refreshed, self._lanes["suffix", element].slot)
        return [seconds + (replay if point[0] == "suffix" else 0.0) for point, seconds in unpacked.items()]

    def _unpack(self, source: int, element: Element, target: int) -> float:
        tiers, pool = self._tiers[element], self._session.native.pool
        checkpoint = tiers.snapshot(source)
        start = self._now()
        tiers.restore(checkpoint, target, pool.chain(source))
        seconds = self._now() - start
        tiers.discard(checkpoint)
        return seconds

    def _state(self, slot: int) -> list[Tensor]:
        pool = self._session.native.pool
        return [pool.temporal(layer.index)[slot] for layer in pool.layout.layers]

    def _now(self) -> float:
        if self._session.native.pool.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def _tiers(session: Session, plan: RetentionPlan, element: Element) -> StateTiers:
    codec = Codec(session.native.pool.layout, plan, "ragged", element)
    return StateTiers(session.native, SlotAllocator(PackedPool(codec, 1, session.native.pool.device), "compressed"))
