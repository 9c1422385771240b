"""What running sequences hold in the pools: entering, growing, leaving, and keeping a state on the way."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from holdover.engine.sequence import Place, Sequence
from holdover.prefix import Match, PrefixCache, check_integrity
from holdover.store import LeaseState

logger = logging.getLogger(__name__)


class Residence:
    """Moves slots and rows between sequences and the cache. Used by the engine thread only.

    Args:
        cache: the prefix cache, which also hands out slots and rows.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache

    def has_room(self, sequence: Sequence) -> bool:
        """Whether the rows that a waiting sequence needs can be had without taking any from a running one."""
        match = self.cache.match(sequence.namespace, sequence.tokens)
        resumed = match.state_depth if sequence.may_resume else 0
        kept = sum(len(n.tokens) for n in match.node.path() if not n.locks) if match.node and resumed else 0
        available = self.cache.kv.num_free + self.cache.evictable_rows() - kept
        return len(sequence.tokens) - resumed + 1 <= available

    def enter(self, sequence: Sequence) -> Match:
        """Give a sequence a slot with the deepest state that it can resume from; returns what was found.

        Raises:
            CapacityError: every slot is live; the sequence owns nothing.
        """
        opened = self.cache.open(sequence.namespace, sequence.tokens, reuse=sequence.may_resume)
        sequence.enter(Place.of(opened))
        return opened.match

    def grow(self, sequences: Iterable[Sequence], count: int) -> None:
        """Give running sequences rows for the next ``count`` tokens of each.

        Raises:
            CapacityError: not all of them can be had; nothing was taken.
        """
        # a step that was interrupted after rows were reserved left them with their sequence
        grown = list(sequences)
        missing = [max(0, s.computed + count - len(s.place.rows)) for s in grown]
        if total := sum(missing):
            # one allocation for all: it costs far more than a row does
            for sequence, rows in zip(grown, self.cache.allocate_rows(total).split(missing), strict=True):
                sequence.place.rows.append(rows)

    def keep_state(self, sequence: Sequence) -> None:
        """Copy a running sequence's state into the cache, and move its rows there.

        Raises:
            CapacityError: no slot can be had; the sequence goes on as it was.
        """
        depth, place = sequence.computed, sequence.place
        lease = self.cache.acquire_slot(LeaseState.CACHED)
        try:
            self.cache.slots.pool.copy(place.lease.slot, lease.slot)
            rows = self.cache.publish(place.hold, sequence.tokens[:depth], place.rows.view(end=depth), lease)
        except BaseException:
            lease.release()
            raise
        place.rows.replace_prefix(rows)

    def leave(self, sequence: Sequence, *, keep: bool) -> None:
        """Take back all that a sequence owns; with ``keep``, its state and rows move to the cache."""
        tokens = sequence.tokens[: sequence.computed]
        place = sequence.leave()
        # rows of a step that failed, or that was reserved and not run
        if len(unused := place.rows.truncate(max(len(tokens), place.hold.depth))):
            self.cache.kv.free(unused)
        try:
            if keep and tokens and self.cache.slots.pool.is_whole(place.lease.slot):
                self._donate(place, tokens)
        except Exception:
            logger.exception("state at depth %d was not kept", len(tokens))
        finally:
            if place.lease.is_held:
                if place.owned_rows:
                    self.cache.kv.free(place.rows.view(place.hold.depth))
                place.lease.release()
            self.cache.release(place.hold)

    def check_integrity(self, places: Iterable[Place]) -> None:
        """Verify that every pool balances with what ``places`` own.

        Raises:
            IntegrityError: with the ids of what leaked.
        """
        places = list(places)
        check_integrity(
            self.cache,
            [place.hold for place in places],
            owned_rows=sum(place.owned_rows for place in places),
            live_slots=len(places),
        )

    def _donate(self, place: Place, tokens: list[int]) -> None:
        """Move a place's slot and rows to the cache. If it raises, nothing was moved."""
        place.lease = place.lease.move(LeaseState.CACHED)
        self.cache.publish(place.hold, tokens, place.rows.view(), place.lease)
