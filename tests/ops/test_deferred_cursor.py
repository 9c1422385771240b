"""Where logs stand: the rule on the host, and both forms of it on the device."""

from __future__ import annotations

import random
from math import ceil

import pytest
import torch

from holdover.ops.deferred.log import Cursor, next_cursor
from tests.ops.test_deferred import DEVICE, each_form, form_of

SLOTS = [0, 5, 1, 0, 2, 9, 4]


def cursor_of(stands: list[tuple[int, int]]) -> Cursor:
    return Cursor(*torch.tensor(stands, dtype=torch.int32, device=DEVICE).T.contiguous())


@each_form
@pytest.mark.parametrize("capacity", [0, 1, 3, 7])
@pytest.mark.parametrize("dense", [False, True])
def test_device_and_host_agree(name: str, capacity: int, dense: bool) -> None:
    draw, form = random.Random(capacity), form_of(name)
    index = torch.tensor(SLOTS, device=DEVICE)
    for case in range(20):
        before = [(draw.randint(0, capacity), draw.choice([0, draw.randint(0, capacity)])) for _ in range(10)]
        drafts = draw.randint(1, capacity) if capacity and case % 2 else None
        cursor = cursor_of(before)
        form.advance(cursor, index, capacity, drafts=drafts, dense=dense)
        after = [
            next_cursor(*stand, slot, capacity, drafts=drafts, dense=dense) if slot in SLOTS else stand
            for slot, stand in enumerate(before)
        ]
        assert list(zip(*(x.tolist() for x in cursor), strict=True)) == after
        assert after[0] == before[0]
        assert all(limit <= capacity for _, limit in after)


@each_form
def test_rollback(name: str) -> None:
    cursor = cursor_of([(slot % 8, 3) for slot in range(10)])
    counts = torch.tensor([7, 5, 0, 3, 1, 1, 2], dtype=torch.int32, device=DEVICE)
    form_of(name).rollback(cursor, torch.tensor(SLOTS, device=DEVICE), counts)
    assert cursor.length.tolist() == [0, 1, 1, 3, 2, 0, 6, 7, 0, 0]
    assert cursor.limit.tolist() == [3] * 10


@pytest.mark.parametrize(
    ("stand", "drafts", "dense", "expected"),
    [
        ((0, 0), None, True, (0, 0)),
        ((0, 0), None, False, (0, 6)),  # 1 + 5 % 7
        ((5, 6), None, False, (6, 6)),
        ((6, 6), None, False, (0, 7)),
        ((6, 6), None, True, (0, 0)),
        ((2, 6), None, True, (3, 6)),
        ((7, 4), None, False, (0, 7)),  # as after a verification
        ((0, 0), 4, False, (4, 6)),
        ((0, 0), 4, True, (4, 0)),
        ((3, 2), 4, False, (7, 2)),
        ((4, 2), 4, False, (4, 7)),
        ((4, 2), 4, True, (4, 0)),
    ],
)
def test_rule(stand: tuple[int, int], drafts: int | None, dense: bool, expected: tuple[int, int]) -> None:
    assert next_cursor(*stand, slot=5, capacity=7, drafts=drafts, dense=dense) == expected


@pytest.mark.parametrize("batch", [3, 7, 64, 100])
def test_changeover_spreads_folds(batch: int) -> None:
    """Slots that turn from dense to deferred at one step do not fold at one step, and all find their way back."""
    capacity, turns = 7, [True] * 5 + [False] * 40 + [True] * 8
    stands, folds = dict.fromkeys(range(1, batch + 1), (0, 0)), []
    for dense in turns:
        folds.append(sum(length >= limit for length, limit in stands.values()))
        stands = {slot: next_cursor(*stand, slot, capacity, dense=dense) for slot, stand in stands.items()}
    assert folds[:6] == [batch] * 6
    assert max(folds[6:45]) <= ceil(batch / capacity)
    assert sum(folds[14:38]) == 3 * batch  # every slot once in a cycle of M = 8 steps
    assert set(stands.values()) == {(0, 0)}
