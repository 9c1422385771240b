"""What running sequences hold in the pools: entering, growing, leaving, and keeping a state on the way."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from holdover.engine.sequence import Place, Sequence
from holdover.errors import CapacityError
from holdover.prefix import Match, PrefixCache, check_integrity
from holdover.prefix.spill import Spill
from holdover.store import Checkpoint

logger = logging.getLogger(__name__)


class Residence:
    """Moves slots and rows between sequences and the cache. Used by the engine thread only.

    Args:
        cache: the prefix cache, which also hands out slots and rows.
        spill: what keeps checkpoints below the resident tiers, if anything does.
        max_losses: most lossy restores that a resumed state may have in its past; None for any number.
    """

    def __init__(self, cache: PrefixCache, spill: Spill | None = None, max_losses: int | None = None) -> None:
        self.cache = cache
        self.spill = spill
        self.max_losses = max_losses

    def has_room(self, sequence: Sequence) -> bool:
        """Whether the rows that a waiting sequence needs can be had without taking any from a running one."""
        match = self.cache.match(sequence.namespace, sequence.tokens, max_losses=self._most_losses(sequence))
        resumed = match.state_depth if sequence.may_resume else 0
        kept = sum(len(n.tokens) for n in match.node.path() if not n.locks) if match.node and resumed else 0
        available = self.cache.kv.num_free + self.cache.rows.evictable() + self.cache.rows.lent() - kept
        return len(sequence.tokens) - resumed + 1 <= available

    def check_pins(self, sequence: Sequence) -> None:
        """Check that a waiting sequence can run to its end beside what is pinned, however many others make room.

        Raises:
            CapacityError: it cannot; the message says what the pins leave.
        """
        is_bounded = sequence.request.params.max_tokens is not None
        room = self._room(sequence)
        if room < (sequence.max_tokens if is_bounded else sequence.num_generated + 1):
            pinned, total = sum(self.cache.pins.rows.values()), self.cache.kv.num_rows
            raise CapacityError(
                f"pins hold {pinned} of {total} KV rows, and beside them a prompt of {len(sequence.request.prompt)} "
                f"tokens can have {max(0, room)} more: unpin something, shorten the prompt or lower max_tokens"
            )

    def enter(self, sequence: Sequence) -> Match:
        """Give a sequence a slot with the deepest state that it can resume from; returns what was found.

        Raises:
            CapacityError: every slot is live; the sequence owns nothing.
        """
        namespace, tokens, most = sequence.namespace, sequence.tokens, self._most_losses(sequence)
        source = self._fetch(sequence)
        room = self._room(sequence)
        opened = self.cache.open(namespace, tokens, reuse=sequence.may_resume, max_losses=most)
        # one that may go on for as long as there is room ends where pins leave none
        sequence.max_tokens = min(sequence.max_tokens, room)
        sequence.enter(Place.of(opened))
        return opened.match._replace(source=source)

    def find(self, sequence: Sequence) -> Match:
        """What a sequence would resume from, brought up from below where that is deeper."""
        if not sequence.may_resume:
            return Match(None, 0)
        source = self._fetch(sequence)
        match = self.cache.match(sequence.namespace, sequence.tokens, max_losses=self._most_losses(sequence))
        return match._replace(source=source)

    def grow(self, sequences: Iterable[Sequence], count: int) -> None:
        """Give running sequences rows for the next ``count`` tokens of each.

        Raises:
            CapacityError: not all of them can be had; nothing was taken.
        """
        # a step that was interrupted after rows were reserved left them with their sequence
        grown = list(sequences)
        missing = [max(0, s.computed + count - len(s.place.rows)) for s in grown]
        if not (total := sum(missing)):
            return
        # one allocation for all: it costs far more than a row does
        allocated = self.cache.rows.allocate(total)
        if max(missing) == 1:
            wanting = (s for s, count in zip(grown, missing, strict=True) if count)
            for sequence, row in zip(wanting, allocated.tolist(), strict=True):
                sequence.place.rows.append(row)
        else:
            for sequence, rows in zip(grown, allocated.split(missing), strict=True):
                sequence.place.rows.extend(rows)

    def trim(self, sequences: Iterable[Sequence]) -> bool:
        """Take back the rows behind the next token of each, which drafts were given; whether there were any."""
        unused = [s.place.rows.truncate(s.computed + 1) for s in sequences if len(s.place.rows) > s.computed + 1]
        for rows in unused:
            self.cache.kv.free(rows)
        return bool(unused)

    def has_state(self, sequence: Sequence) -> bool:
        """Whether the cache has a state of what the sequence has computed that is as good as its own would be."""
        lineage, depth = sequence.place.hold.lineage, sequence.computed
        lineage = self.cache.tiers.restored(lineage, depth, dense=sequence.request.exact)
        return self.cache.has_state(sequence.namespace, sequence.tokens[:depth], lineage)

    def keep_state(self, sequence: Sequence) -> None:
        """Copy a running sequence's state into the cache, and move its rows there.

        Raises:
            CapacityError: no slot can be had; the sequence goes on as it was.
        """
        depth, place, dense = sequence.computed, sequence.place, sequence.request.exact
        checkpoint = self.cache.tiers.snapshot(place.lease.slot, dense=dense)
        try:
            tokens, rows = sequence.tokens[:depth], place.rows[:depth]
            kept = self.cache.publish(place.hold, tokens, rows, checkpoint, dense=dense)
        except BaseException:
            self.cache.tiers.abandon(checkpoint)
            raise
        place.rows.replace_prefix(kept)
        self._write_through(place)

    def leave(self, sequence: Sequence, *, keep: bool) -> None:
        """Take back all that a sequence owns; with ``keep``, its state and rows move to the cache."""
        tokens = sequence.tokens[: sequence.computed]
        keep = keep and bool(tokens) and self.cache.tiers.native.pool.is_whole(sequence.place.lease.slot)
        with_state = keep and not self.has_state(sequence)
        place = sequence.leave()
        # rows of a step that failed, or that was reserved and not run
        if len(unused := place.rows.truncate(max(len(tokens), place.hold.depth))):
            self.cache.kv.free(unused)
        try:
            if keep:
                self._donate(place, tokens, with_state=with_state, dense=sequence.request.exact)
        except CapacityError as error:
            logger.debug("state at depth %d was not kept: %s", len(tokens), error)
        except Exception:
            logger.exception("state at depth %d was not kept", len(tokens))
        finally:
            if place.owned_rows:
                self.cache.kv.free(place.rows[place.hold.depth :])
            if place.lease.is_held:
                place.lease.release()
            self.cache.release(place.hold)

    def check_integrity(
        self,
        places: Iterable[Place],
        *,
        scratch: int = 0,
        other_rows: int = 0,
        other_checkpoints: SequenceOf[Checkpoint] = (),
    ) -> None:
        """Verify that every pool balances with what ``places`` own.

        Args:
            places: of all running sequences.
            scratch: slots that the engine itself owns.
            other_rows: rows that are neither the cache's nor a sequence's.
            other_checkpoints: checkpoints in the cache's tiers that are not the cache's.

        Raises:
            IntegrityError: with the ids of what leaked.
        """
        places = list(places)
        check_integrity(
            self.cache,
            [place.hold for place in places],
            owned_rows=sum(place.owned_rows for place in places) + other_rows,
            live_slots=len(places) + scratch,
            others=other_checkpoints,
        )

    def _room(self, sequence: Sequence) -> int:
        """Most tokens that a sequence can generate, for all that is pinned. O(tokens and nodes of all pins)."""
        if not self.cache.pins:
            return sequence.max_tokens
        pinned, own = self.cache.pins.rows, 0
        if sequence.may_resume:
            most = self._most_losses(sequence)
            match = self.cache.match(sequence.namespace, sequence.tokens, max_losses=most)
            own = sum(pinned.get(node, 0) for node in match.node.path()) if match.node is not None else 0
        # the last token that is generated needs no row
        return self.cache.kv.num_rows - sum(pinned.values()) + own - len(sequence.request.prompt) + 1

    def _donate(self, place: Place, tokens: list[int], *, with_state: bool, dense: bool) -> None:
        """Move a place's rows and, if it is of use, its slot to the cache. If it raises, nothing was moved."""
        checkpoint = self.cache.tiers.donate(place.lease) if with_state else None
        try:
            rows = self.cache.publish(place.hold, tokens, place.rows[:], checkpoint, dense=dense)
        except BaseException:
            if checkpoint is not None:
                self.cache.tiers.abandon(checkpoint)
            raise
        place.rows.replace_prefix(rows)
        self._write_through(place)

    def _write_through(self, place: Place) -> None:
        if self.spill is not None:
            self.spill.store(place.hold.node)

    def _fetch(self, sequence: Sequence) -> str | None:
        if self.spill is None or not sequence.may_resume:
            return None
        return self.spill.fetch(sequence.namespace, sequence.tokens, max_losses=self._most_losses(sequence))

    def _most_losses(self, sequence: Sequence) -> int | None:
        return 0 if sequence.request.exact else self.max_losses
