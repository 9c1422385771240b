"""Attention KV: one row per token and layer, allocated by the token.

The row is the only unit: there is no page that a depth could be rounded to, so a depth, a checkpoint and a KV
boundary can never be counted in different units. A sequence's cache is a list of rows in token order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch

from holdover.arch.layout import DTYPE_BYTES, AttentionLayer, KVLayout
from holdover.errors import CapacityError, CheckpointMismatchError, IntegrityError, OwnershipError

# padding tokens of a batch write this row; no sequence ever owns it
SINK_ROW = 0
# one int64 index and one ownership flag per row
_ROW_METADATA_BYTES = 9


class KVPool:
    """Rows of keys and values (or latents and shared key parts) of every attention layer.

    Rows are numbered from 1; row 0 is the sink. One thread uses the pool.

    Args:
        layout: the attention layers.
        num_rows: usable rows, the sink not counted.
        device: where the planes live; row indices are on the CPU.
        poison: fill freed and fresh rows with NaN (tests).
    """

    def __init__(
        self, layout: KVLayout, num_rows: int, device: torch.device | str = "cpu", *, poison: bool = False
    ) -> None:
        self.layout = layout
        self.num_rows = num_rows
        self.device = torch.device(device)
        self._poison = poison
        self._layers = {layer.index: layer for layer in layout.layers}
        self._planes = {
            layer.index: tuple(self._plane(layer.heads, width) for width in (layer.d_k, layer.d_v))
            for layer in layout.layers
        }
        # a stack with the lowest rows on top, so that a fresh sequence gets neighbouring rows
        self._free = torch.arange(num_rows, 0, -1)
        self._num_free = num_rows
        self._is_used = torch.zeros(num_rows + 1, dtype=torch.bool)

    @staticmethod
    def bytes_for(layout: KVLayout, num_rows: int) -> int:
        """Exact bytes that a pool of ``num_rows`` allocates, the sink and the row bookkeeping included."""
        return layout.bytes_per_token * (num_rows + 1) + _ROW_METADATA_BYTES * num_rows + 1

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors of the pool."""
        tensors = [plane for planes in self._planes.values() for plane in planes] + [self._free, self._is_used]
        return sum(t.numel() * t.element_size() for t in tensors)

    @property
    def num_free(self) -> int:
        """Rows that nobody owns."""
        return self._num_free

    def layer(self, index: int) -> AttentionLayer:
        """Layout of one layer."""
        return self._layers[index]

    def planes(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Both planes of one layer: ``[rows, heads, d_k]`` and ``[rows, heads, d_v]``."""
        first, second = self._planes[layer]
        return first, second

    def allocate(self, count: int) -> torch.Tensor:
        """Take ``count`` free rows, int64 ``[count]``. Their contents are undefined.

        Raises:
            CapacityError: fewer rows are free; nothing was taken.
        """
        if not 0 <= count <= self._num_free:
            raise CapacityError(f"{count} KV rows wanted, {self._num_free} of {self.num_rows} are free")
        rows = self._free[self._num_free - count : self._num_free].flip(0)
        self._num_free -= count
        self._is_used[rows] = True
        return rows

    def are_used(self, rows: torch.Tensor) -> bool:
        """Whether every row is in use and none is named twice. Mutates nothing."""
        return bool(self._is_used[rows].all()) and bool(rows.sort().values.diff().all())

    def free(self, rows: torch.Tensor) -> None:
        """Give rows back.

        Raises:
            OwnershipError: a row is not in use, or named twice (freed twice); nothing was freed.
        """
        if not self.are_used(rows):
            counts = Counter(rows.tolist())
            twice = [row for row, count in counts.items() if count > 1 or not self._is_used[row]]
            raise OwnershipError(f"KV rows {twice[:8]} freed twice")
        self._is_used[rows] = False
        count = len(rows)
        self._free[self._num_free : self._num_free + count] = rows.flip(0)
        self._num_free += count
        if self._poison:
            for planes in self._planes.values():
                for plane in planes:
                    plane[rows] = float("nan")

    def write(self, layer: int, rows: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
        """Store tokens' rows of one layer: ``first [tokens, heads, d_k]``, ``second [tokens, heads, d_v]``."""
        for plane, values in zip(self._planes[layer], (first, second), strict=True):
            plane.index_copy_(0, rows, values.to(plane.dtype))

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy rows over others, in every layer: int64 ``[n]`` each. Mutates ``target``'s rows only."""
        for planes in self._planes.values():
            for plane in planes:
                plane.index_copy_(0, target.to(plane.device), plane.index_select(0, source.to(plane.device)))

    def read_bytes(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows as bytes in host memory, uint8 ``[n, bytes_per_token]``: layer by layer, first plane, second plane."""
        out = torch.empty(len(rows), self.layout.bytes_per_token, dtype=torch.uint8)
        for plane, part in self._parts():
            out[:, part] = plane[rows.to(plane.device)].flatten(1).view(torch.uint8).cpu()
        return out

    def write_bytes(self, rows: torch.Tensor, data: torch.Tensor) -> None:
        """Set rows from what `read_bytes` gave, uint8 ``[n, bytes_per_token]``.

        Raises:
            CheckpointMismatchError: the bytes are not those of as many rows of this layout.
        """
        if data.shape != (len(rows), self.layout.bytes_per_token):
            wanted = (len(rows), self.layout.bytes_per_token)
            raise CheckpointMismatchError(f"KV bytes of shape {tuple(data.shape)}; wanted {wanted}")
        for plane, part in self._parts():
            values = data[:, part].contiguous().view(plane.dtype).view(len(rows), *plane.shape[1:])
            plane.index_copy_(0, rows.to(plane.device), values.to(plane.device))

    def check_integrity(self) -> None:
        """Verify that every row is free or in use, once.

        Raises:
            IntegrityError: naming rows that are both or neither.
        """
        free = self._free[: self._num_free]
        both = free[self._is_used[free]].tolist()
        used = int(self._is_used.sum())
        if both or len(set(free.tolist())) != self._num_free or used + self._num_free != self.num_rows:
            raise IntegrityError(
                f"KV rows: {self._num_free} free + {used} used != {self.num_rows} in all; both free and used: {both}"
            )

    def _parts(self) -> Iterator[tuple[torch.Tensor, slice]]:
        """Every plane with the place of its row among a token's bytes."""
        start = 0
        for planes in self._planes.values():
            for plane in planes:
                end = start + plane[0].numel() * plane.element_size()
                yield plane, slice(start, end)
                start = end

    def _plane(self, heads: int, width: int) -> torch.Tensor:
        shape = (self.num_rows + 1, heads, width)
        dtype = getattr(torch, self.layout.dtype)
        assert self.layout.dtype in DTYPE_BYTES
        fill = float("nan") if self._poison else 0.0
        return torch.full(shape, fill, dtype=dtype, device=self.device)
