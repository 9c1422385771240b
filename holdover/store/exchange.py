"""Stores retained units on the ranks that a placement gives them to, and brings them back (DASC App. B.1).

Only units that another rank stores are sent, in one all-to-all with splits that are known beforehand; where a
placement moves nothing there is no collective. Both directions reindex: no byte of a unit changes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from holdover.errors import CheckpointMismatchError, ConfigError, IntegrityError
from holdover.retention.placement import Placement


class Exchange:
    """One rank's end of the exchange.

    Every call is collective: all ranks make the same calls in the same order, with equal batches.

    Args:
        placement: the same on every rank.
        rank: this rank.
        group: a process group of exactly the placement's ranks; the default group if None. One rank needs none.
        device: where the group's backend moves small messages (NCCL: the rank's GPU).

    Attributes:
        remote_bytes: bytes that this rank has sent to others so far, by `store` and `load`.

    Raises:
        ConfigError: the group has other ranks than the placement, or gives this process another rank.
    """

    def __init__(
        self,
        placement: Placement,
        rank: int,
        group: dist.ProcessGroup | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if placement.ranks > 1:
            found = dist.get_rank(group), dist.get_world_size(group)
            if found != (rank, placement.ranks):
                raise ConfigError(
                    f"the process group makes this rank {found[0]} of {found[1]}; the placement wants rank {rank} of "
                    f"{placement.ranks}"
                )
        self.placement = placement
        self.rank = rank
        self.remote_bytes = 0
        self._group = group
        self._device = torch.device(device)
        self._sent, self._received = list(placement.sent[rank]), list(placement.received[rank])

    def store(self, units: Tensor) -> Tensor:
        """Exchange the units that this rank computes for those that it stores.

        Args:
            units: retained units in the placement's local order ``[..., n_r, width]``, any dtype; leading axes are
                checkpoints.

        Returns:
            ``[..., slot_width, width]``: the first local units, what other ranks sent, then zeros.

        Raises:
            CheckpointMismatchError: this rank computes another number of units.
        """
        self._check(units, self.placement.computed[self.rank], "computes")
        kept = self.placement.kept[self.rank]
        stored = units.new_zeros(*units.shape[:-2], self.placement.slot_width, units.shape[-1])
        stored[..., :kept, :] = units[..., :kept, :]
        if self.placement.remote_units:
            received = self._swap(units[..., kept:, :], self._sent, self._received)
            stored[..., kept : kept + sum(self._received), :] = received
        return stored

    def load(self, stored: Tensor) -> Tensor:
        """The inverse of `store`: from what this rank stores to the units that it computes.

        Args:
            stored: ``[..., slot_width, width]``.

        Returns:
            ``[..., n_r, width]``.

        Raises:
            CheckpointMismatchError: slots have another width.
        """
        self._check(stored, self.placement.slot_width, "stores")
        kept, count = self.placement.kept[self.rank], self.placement.computed[self.rank]
        units = stored.new_empty(*stored.shape[:-2], count, stored.shape[-1])
        units[..., :kept, :] = stored[..., :kept, :]
        if self.placement.remote_units:
            others = stored[..., kept : kept + sum(self._received), :]
            units[..., kept:, :] = self._swap(others, self._received, self._sent)
        return units

    def agree(self, depth: int, victims: Sequence[int] = ()) -> int:
        """The hit depth that all ranks take: the least of theirs. Victims must be the same ones in the same order.

        A rank may have no checkpoint at the least depth. Whoever looks up therefore asks again with the deepest one
        at or below the answer, until the answer stays: then every rank has it.

        Args:
            depth: deepest checkpoint that this rank can resume from, in tokens.
            victims: what this rank is about to evict, by numbers that mean the same on every rank.

        Raises:
            IntegrityError: on every rank alike, naming the ranks that would evict something else than most do.
        """
        if self.placement.ranks == 1:
            return depth
        digest = hashlib.blake2b(repr([int(victim) for victim in victims]).encode(), digest_size=8).digest()
        mine = torch.tensor([depth, int.from_bytes(digest, "big", signed=True)], device=self._device)
        everyone = [torch.empty_like(mine) for _ in range(self.placement.ranks)]
        dist.all_gather(everyone, mine, group=self._group)
        depths, digests = torch.stack(everyone).T.tolist()
        usual, _ = Counter(digests).most_common(1)[0]
        if others := [rank for rank, found in enumerate(digests) if found != usual]:
            raise IntegrityError(f"ranks {others} of {len(digests)} would evict other checkpoints than the rest")
        return int(min(depths))

    def _check(self, tensor: Tensor, wanted: int, verb: str) -> None:
        if tensor.dim() < 2 or tensor.shape[-2] != wanted:
            raise CheckpointMismatchError(
                f"rank {self.rank} {verb} {wanted} units of a checkpoint; got a tensor of {list(tensor.shape)}"
            )

    def _swap(self, units: Tensor, sends: list[int], receives: list[int]) -> Tensor:
        """Send ``units [..., n, width]``, ordered by rank, for those that other ranks send to this one."""
        # not contiguous(): strides of single entries would stay, and bytes could not be viewed
        outgoing = units.movedim(-2, 0).clone(memory_format=torch.contiguous_format)
        incoming = outgoing.new_empty(sum(receives), *outgoing.shape[1:])
        # as bytes: not every backend knows every dtype
        dist.all_to_all_single(
            incoming.view(torch.uint8), outgoing.view(torch.uint8), receives, sends, group=self._group
        )
        self.remote_bytes += outgoing.nbytes
        return incoming.movedim(0, -2)
