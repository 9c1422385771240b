"""Where the logs of one KV cache group stand, told from the sequences' positions.

A step folds where the depth after it is a multiple of the merge interval or of vLLM's block size, so a page is
canonical at every block boundary. A page's log begins at its *depth*: that of its last fold, or of the prefill that
filled it. What vLLM copies or caches ends at a multiple of one of the two, so a page that a sequence comes to from
elsewhere has an empty log whatever this table says of it, and nothing of the table is copied, cached or stored with a
page. Whoever writes a state of another depth into a page says so (`begin`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdover.ops.deferred.log import Cursor
from holdover.ops.forms import has_triton


class GroupCursor:
    """One number per page, on the device; all layers of a group share it.

    Args:
        num_blocks: pages of the pool; page 0 is the sink.
        interval: merge interval M.
        block_size: tokens of a block.
        device: where the pages are.

    Attributes:
        cursor: of all pages, as the ops take it; good for the step that `decode` was called for.
        counts: tokens that were decoded, and those of them that folded: int64 ``[2]``.
    """

    def __init__(self, num_blocks: int, interval: int, block_size: int, device: torch.device) -> None:
        self._interval, self._block_size = interval, block_size
        self._depth, length, limit = torch.zeros(3, num_blocks, dtype=torch.int32, device=device).unbind()
        self.cursor = Cursor(length, limit)
        self.counts = torch.zeros(2, dtype=torch.int64, device=device)

    def decode(self, slots: Tensor, positions: Tensor) -> None:
        """Set the cursor for one token of every page in ``slots [n]`` int64, at ``positions [n]`` int32.

        Rows with slot 0 are padding.
        """
        if has_triton(slots.device.type):
            from holdover.integrations.vllm.decode import cursor_kernel

            table = self._depth, self.cursor, self.counts
            cursor_kernel.decode(*table, slots, positions, self._interval, self._block_size)
            return
        depth = self._began(slots, positions)
        length, after = positions - depth, positions + 1
        folds = (after % self._interval == 0) | (after % self._block_size == 0)
        self._depth[slots] = depth
        self.cursor.length[slots] = length
        self.cursor.limit[slots] = torch.where(folds, length, self._interval)
        real = slots != 0
        self.counts += torch.stack([real.sum(), (real & folds).sum()])

    def prefill(self, slots: Tensor, positions: Tensor, depths: Tensor) -> None:
        """Set the cursor for tokens that vLLM computes, from ``positions [n]`` up to ``depths [n]``, int32.

        What a log holds by then is to be folded first: its length is right, its limit says nothing.
        """
        first, last = (x // self._block_size for x in (positions, depths - 1))
        self.cursor.length[slots] = torch.where(first == last, positions - self._began(slots, positions), 0)
        self._depth[slots] = depths

    def begin(self, slots: Tensor, depths: Tensor) -> None:
        """Note that pages ``slots [n]`` int64 hold whole states of ``depths [n]``, int32, and no log."""
        self._depth[slots] = depths

    def settle(self, slots: Tensor, depths: Tensor) -> None:
        """Set the cursor for folding pages ``slots [n]`` whose sequences have ``depths [n]`` tokens.

        Their limit says nothing. The table stays as it is: every layer of the group is folded so.
        """
        self.cursor.length[slots] = depths - self._began(slots, depths)

    def _began(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Depth at which each page's log begins, at most its sequence's."""
        into = torch.minimum(positions % self._interval, positions % self._block_size)
        # a page that was another sequence's may say anything, but then it is at a boundary
        return self._depth[slots].maximum(positions - into).minimum(positions)
