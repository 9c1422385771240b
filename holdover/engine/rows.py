"""Where the tokens of a sequence have their keys and values."""

from __future__ import annotations

import torch


class RowTable:
    """KV row of every token of one sequence, in order; grows without copying each time.

    Attributes:
        stamp: another object as soon as a token's row may have become another.
    """

    def __init__(self, rows: torch.Tensor) -> None:
        self.stamp = object()
        self._buffer = rows.clone()
        # the same memory: single rows come and go faster without a tensor each
        self._array = self._buffer.numpy()
        self._length = len(rows)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> torch.Tensor:
        """Rows of a part of the tokens."""
        return self._buffer[: self._length][part]

    def numbers(self, start: int, end: int) -> list[int]:
        """Rows of tokens ``start`` to ``end`` without a tensor."""
        found: list[int] = self._array[start:end].tolist()
        return found

    def append(self, row: int) -> None:
        """Add the row of one more token."""
        self._make_room(self._length + 1)
        self._array[self._length] = row
        self._length += 1

    def extend(self, rows: torch.Tensor) -> None:
        """Add the rows of more tokens, int64 ``[n]``."""
        end = self._length + len(rows)
        self._make_room(end)
        self._buffer[self._length : end] = rows
        self._length = end

    def replace_prefix(self, rows: torch.Tensor) -> None:
        """Put other rows in the place of the first ones."""
        self._buffer[: len(rows)] = rows
        self.stamp = object()

    def truncate(self, length: int) -> torch.Tensor:
        """Forget the rows from ``length`` on and return them."""
        self.stamp = object()
        dropped = self._buffer[length : self._length].clone()
        self._length = length
        return dropped

    def _make_room(self, length: int) -> None:
        if length > len(self._array):
            grown = torch.empty(max(length, 2 * len(self._array), 64), dtype=torch.int64)
            grown[: self._length] = self._buffer[: self._length]
            self._buffer, self._array = grown, grown.numpy()
