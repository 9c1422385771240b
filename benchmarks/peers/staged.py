"""DeltaLog's staged append (Section 3.3, Figure 5): ReplayPrep once per slot and head, then tiles.

Here a fold takes the same two launches. Slots may be in any phase.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from benchmarks.decode_arms import Shape
from benchmarks.peers.peer import Peer, Result, Step, Token, layerwise
from benchmarks.peers.staged_kernels import prepare_kernel, tile_kernel
from holdover.ops.deferred.log import FLOOR, Cursor, Log
from holdover.ops.deferred.tiling import choose
from holdover.ops.recurrence.delta import EPS


class Staged:
    """One layer, with the scratch that the first kernel leaves for the second.

    Args:
        log: of all slots; its family follows the delta rule, and a step replays all of its entries at once.
        batch: sequences of a step.
    """

    def __init__(self, log: Log, batch: int) -> None:
        layout, device = log.layout, log.keys.device
        self.log = log
        self.entries = triton.next_power_of_2(layout.capacity)
        self.products = torch.empty(batch, layout.heads, 2, self.entries, device=device)
        self.factors = torch.empty(batch, layout.heads, 3, device=device)
        self.totals = torch.empty(batch, layout.heads, layout.d_k if layout.family.per_key else 1, device=device)

    def step(self, base: Tensor, cursor: Cursor, slots: Tensor, arguments: tuple[Tensor, ...]) -> Tensor:
        """As `deferred.step`, for contiguous inputs and an fp32 base."""
        q, k, v, log_decay, beta = arguments
        layout, log = self.log.layout, self.log
        tiling = choose(layout, len(slots))
        stored = (log.keys, log.values, log.decays, log.scales)
        strides = [x.stride(0) for x in stored if x is not None]
        scratch = (self.products, self.factors, self.totals)
        shape = {
            "heads": layout.heads,
            "key_heads": layout.key_heads,
            "d_k": layout.d_k,
            "d_v": layout.d_v,
            "capacity": layout.capacity,
            "per_key": layout.family.per_key,
            "entries": self.entries,
        }
        out = torch.empty_like(v)
        programs = len(slots) * layout.heads
        prepare_kernel[(programs,)](
            *stored, *cursor, slots, q, k, log_decay, *scratch, *strides, **shape, eps=EPS, floor=FLOOR, num_warps=1
        )
        tile_kernel[(programs * (layout.d_v // tiling.columns),)](
            base,
            *stored,
            *cursor,
            slots,
            q,
            k,
            v,
            beta,
            *scratch,
            out,
            base.stride(0),
            *strides,
            **shape,
            columns=tiling.columns,
            num_warps=tiling.warps,
        )
        return out


def staged(shape: Shape, interval: int) -> Peer:
    """The staged form at one merge interval.

    Raises:
        LookupError: the family does not follow the delta rule.
    """
    if not shape.family.delta:
        raise LookupError("the staged form was written for the delta rule")

    def layer(base: Tensor, cursor: Cursor) -> Step:
        log = shape.layout(interval).allocate(len(base), base.device)
        # lengths may start anywhere: entries that no step has written yet are zero
        for tensor in (log.keys, log.values, log.decays, log.scales):
            if tensor is not None:
                tensor.zero_()
        slots = torch.arange(1, len(base), device=base.device)
        of_layer = Staged(log, len(slots))

        def step(token: Token) -> Result:
            return of_layer.step(base, cursor, slots, token.arguments), base[1:]

        return step

    return Peer("staged", layerwise(layer), interval)
