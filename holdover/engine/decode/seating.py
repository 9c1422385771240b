"""Rows of the decoding sequences in a table on the device, which each step extends by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from holdover.engine.step import Span

# padding of a batch sits here
NO_SEAT = 0


@dataclass
class _Seat:
    """A sequence's line of the table.

    Attributes:
        number: of the line.
        stamp: says whether the rows below ``length`` are still the sequence's.
        length: tokens whose rows are in the line.
    """

    number: int
    stamp: object
    length: int


class Seating:
    """Keeps a line for every sequence that decodes; one that sits out may have to be written again.

    Args:
        seats: most sequences of a batch.
        context: most tokens of a sequence.
        device: where the table lives.
    """

    def __init__(self, seats: int, context: int, device: torch.device) -> None:
        self.table = torch.zeros(seats + 1, context, dtype=torch.int32, device=device)
        self._free = list(range(seats, NO_SEAT, -1))
        self._seats: dict[int, _Seat] = {}

    @staticmethod
    def bytes_for(seats: int, context: int) -> int:
        """Exact bytes of the table."""
        return 4 * (seats + 1) * context

    def seat(self, spans: Sequence[Span]) -> list[int]:
        """Seat of each span, whose rows before its first token are then in the table.

        The rows of its own tokens are written by the step; a span that says nothing of its rows' past (no ``stamp``)
        is written anew each time.
        """
        present = {span.slot for span in spans}
        found = []
        for span in spans:
            seat = self._seats.get(span.slot) or self._take(span.slot, present)
            stamp = span.stamp
            if stamp is None or seat.stamp is not stamp or seat.length < span.start:
                line = span.rows[: span.start].to(torch.int32)
                self.table[seat.number, : span.start].copy_(line)
                seat.stamp = stamp
            seat.length = span.start + len(span.tokens)
            found.append(seat.number)
        return found

    def _take(self, slot: int, present: set[int]) -> _Seat:
        if not self._free:
            for other in [other for other in self._seats if other not in present]:
                self._free.append(self._seats.pop(other).number)
        seat = self._seats[slot] = _Seat(self._free.pop(), None, 0)
        return seat
