"""Transactional demotion of checkpoints from native to packed slots (DASC App. B.2).

The dense bytes stay valid, and are what a hit reads, until the packed ones are whole and nobody reads the dense ones
any more. A demotion that fails leaves the checkpoint, its place in the order and its pins as they were.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

from holdover.state import SlotPool
from holdover.store.checkpoint import Checkpoint, Demotion
from holdover.store.lease import SlotLease
from holdover.store.mover import Ended, Mover
from holdover.store.packed_pool import PackedPool

logger = logging.getLogger(__name__)


class Demotions:
    """The demotions under way. Used by the engine thread only.

    Args:
        native: where the bytes come from.
        packed: where they go.
        mover: runs the packing.
        counters: counts what was demoted and what failed.
    """

    def __init__(self, native: SlotPool, packed: PackedPool, mover: Mover, counters: Counter[str]) -> None:
        self._native = native
        self._packed = packed
        self._mover = mover
        self._counters = counters
        self._moving: list[Checkpoint] = []

    def __len__(self) -> int:
        return len(self._moving)

    def __iter__(self) -> Iterator[Checkpoint]:
        """Those under way, in the order in which they were started; may be finished meanwhile."""
        return iter(tuple(self._moving))

    def start(self, checkpoint: Checkpoint, target: SlotLease) -> None:
        """Begin to pack an idle dense checkpoint into ``target``, which now belongs to the demotion."""
        source, slot = checkpoint.slot, target.slot
        try:
            transfer = self._mover.start(lambda: self._packed.pack(self._native, source, slot))
        except Exception as error:
            # as if it had been started and had failed
            transfer = Ended(error)
        except BaseException:
            target.release()
            raise
        checkpoint.demotion = Demotion(target, transfer)
        self._moving.append(checkpoint)

    def finish_ended(self) -> None:
        """Finish those whose packing has ended. Never waits."""
        for checkpoint in self:
            if checkpoint.demotion is not None and checkpoint.demotion.transfer.is_done():
                self.finish(checkpoint)

    def finish_all(self) -> None:
        """Wait for all of them; those whose dense bytes are being read stay open."""
        for checkpoint in self:
            self.finish(checkpoint)

    def finish(self, checkpoint: Checkpoint) -> None:
        """Wait for one and commit it, or give it up if it failed; while a hit reads the dense bytes it stays open."""
        demotion = checkpoint.demotion
        assert demotion is not None
        try:
            demotion.transfer.wait()
        except Exception:
            logger.exception("demotion of the checkpoint at depth %d failed; it stays dense", checkpoint.header.depth)
            self._counters["demotions_failed"] += 1
            self.give_up(checkpoint)
            return
        if checkpoint.pins:
            return
        header = self._packed.header_of(checkpoint.header)
        self._packed.commit(demotion.target.slot, header)
        self._moving.remove(checkpoint)
        checkpoint.demotion = None
        checkpoint.replace_bytes(header, demotion.target, self._packed.restored(header.lineage))
        self._counters["demotions"] += 1

    def give_up(self, checkpoint: Checkpoint) -> None:
        """Abandon one; its packed slot is given back once nothing writes it any more."""
        demotion = checkpoint.demotion
        assert demotion is not None
        try:
            demotion.transfer.wait()
        except Exception as error:
            logger.debug("a demotion that was given up had failed: %s", error)
        self._moving.remove(checkpoint)
        checkpoint.demotion = None
        demotion.target.release()

    def close(self) -> None:
        """Finish all and stop the mover."""
        self.finish_all()
        self._mover.close()
