"""Writes entries to shelves behind the engine's back, but never far behind it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdover.errors import SpillError
from holdover.store.spill import Entry, EntryName, Shelf

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SpillCounters:
    """What became of the entries so far, counted once for each shelf.

    Attributes:
        written: entries that a shelf keeps, those included of which it had one as good.
        refused: entries that a shelf's budget could not hold.
        failed: entries that could not be written.
        bytes: state and rows of the written ones.
    """

    written: int = 0
    refused: int = 0
    failed: int = 0
    bytes: int = 0


class SpillWriter:
    """One thread that puts entries on shelves, in the order of their submission.

    An entry can be found on a shelf once it is written there; till then `is_pending` knows it. What was submitted
    must not be changed until then.

    Args:
        shelves: where each entry goes, in this order.
        lag: entries that may be unwritten when `submit` returns, which are those that a crash loses; 0 waits for each.
    """

    def __init__(self, shelves: Sequence[Shelf], *, lag: int = 1) -> None:
        self._shelves = tuple(shelves)
        self._lag = lag
        # oldest first; the one that is being written is still among them
        self._pending: deque[Entry] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._counters = SpillCounters()
        self._thread = threading.Thread(target=self._run, name="holdover-spill", daemon=True)
        self._thread.start()

    @property
    def counters(self) -> SpillCounters:
        """What became of the entries so far."""
        return self._counters

    def is_pending(self, name: EntryName) -> bool:
        """Whether an entry of this name is submitted and not yet on every shelf, or refused."""
        with self._changed:
            return any(entry.name == name for entry in self._pending)

    def submit(self, entry: Entry) -> None:
        """Have an entry written. Waits while more than ``lag`` entries are unwritten; failures are only counted.

        Raises:
            SpillError: the writer is closed.
        """
        with self._changed:
            if self._closed:
                raise SpillError("the writer of spilled checkpoints is closed")
            self._pending.append(entry)
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self._pending) <= self._lag)

    def drain(self) -> None:
        """Wait until everything submitted is written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending)

    def close(self) -> None:
        """Write what is pending and end the thread. May be called again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closed)
                if not self._pending:
                    return
                entry = self._pending[0]
            for shelf in self._shelves:
                self._write(shelf, entry)
            with self._changed:
                self._pending.popleft()
                self._changed.notify_all()

    def _write(self, shelf: Shelf, entry: Entry) -> None:
        now = self._counters
        try:
            kept = shelf.put(entry)
        except Exception as error:
            # whatever it was, the next entry must be written and whoever waits must go on. what a shelf explains
            # itself needs no traceback: while a disk is full, every entry fails
            logger.warning(
                "checkpoint at depth %d was not written to the %s tier: %s",
                entry.name.depth,
                shelf.tier,
                error,
                exc_info=not isinstance(error, SpillError),
            )
            self._counters = replace(now, failed=now.failed + 1)
            return
        if kept:
            self._counters = replace(now, written=now.written + 1, bytes=now.bytes + entry.nbytes)
        else:
            self._counters = replace(now, refused=now.refused + 1)
