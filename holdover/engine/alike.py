"""How far two sequences are alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def alike(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Elements, or characters, at the beginning that both have; both are of one type, such as lists.

    Slices are compared, many times faster than elements: O(n) with log n comparisons.
    """
    same, end = 0, min(len(first), len(second))
    while same < end:
        # rounded up, so that every round ends one of both
        middle = (same + end + 1) // 2
        if first[same:middle] == second[same:middle]:
            same = middle
        else:
            end = middle - 1
    return same
