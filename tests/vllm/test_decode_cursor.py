"""Where a log stands follows from positions alone, whatever sequences come and go."""

import random

import pytest
import torch

from holdover.integrations.vllm.decode.cursor import GroupCursor
from holdover.ops.deferred.log import Cursor
from tests.interpreter import require_triton


class Walked:
    """One sequence, by the rule as it reads: a log is empty after a prefill, a fold and at every block boundary."""

    def __init__(self, page: int) -> None:
        self.page, self.depth, self.length = page, 0, 0

    def decode(self, interval: int, block: int) -> tuple[int, bool]:
        before = self.length
        self.depth += 1
        folds = self.depth % interval == 0 or self.depth % block == 0
        self.length = 0 if folds else before + 1
        return before, folds


@pytest.mark.parametrize(("interval", "block"), [(2, 16), (8, 16), (16, 48), (5, 16), (64, 48)])
def test_the_cursor_agrees_with_a_walk(interval: int, block: int) -> None:
    draw, pages = random.Random(interval), list(range(1, 9))
    cursor, live = GroupCursor(12, interval, block, torch.device("cpu")), list[Walked]()
    steps = folds = 0
    for _ in range(300):
        if len(live) < 4 and pages:
            # pages of sequences that are gone come back as they were left
            live.append(Walked(pages.pop(draw.randrange(len(pages)))))
            depth = draw.randrange(1, 3 * block)
            # a cached prefix, or one that was loaded, is there up to a block boundary, of which the table knows nothing
            if draw.random() < 0.5:
                depth = depth // block * block + block
            else:
                cursor.prefill(*tensors([live[-1].page], [0], [depth]))
            live[-1].depth = depth
        for sequence in live:
            # at a boundary a sequence moves to another page
            if sequence.depth % block == 0:
                pages.append(sequence.page)
                sequence.page = pages.pop(0)
        slots, positions = [s.page for s in live], [s.depth for s in live]
        cursor.decode(*tensors([*slots, 0], [*positions, -1]))
        for sequence in live:
            length, fold = sequence.decode(interval, block)
            assert cursor.cursor.length[sequence.page] == length < interval
            assert (length >= cursor.cursor.limit[sequence.page]) == fold
            steps, folds = steps + 1, folds + fold
        if draw.random() < 0.1:
            pages.append(live.pop(draw.randrange(len(live))).page)
    assert cursor.counts.tolist() == [steps, folds]


@pytest.mark.parametrize(("positions", "depths", "length"), [(21, 22, 5), (21, 30, 5), (21, 40, 0), (16, 30, 0)])
def test_a_prefill_finds_what_is_pending_in_its_page(positions: int, depths: int, length: int) -> None:
    cursor = GroupCursor(4, 8, 32, torch.device("cpu"))
    cursor.decode(*tensors([3], [16]))
    cursor.prefill(*tensors([3], [positions], [depths]))
    assert cursor.cursor.length[3] == length


@pytest.mark.parametrize(("interval", "block"), [(2, 16), (8, 48), (5, 16)])
def test_the_kernel_agrees(interval: int, block: int) -> None:
    require_triton()
    from holdover.integrations.vllm.decode import cursor_kernel

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    plain = GroupCursor(400, interval, block, torch.device("cpu"))
    depth, length, limit = torch.zeros(3, 400, dtype=torch.int32, device=device).unbind()
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    noise = torch.Generator().manual_seed(interval)
    # more rows than one program takes, some of them padding, and pages that were other sequences'
    for _ in range(4):
        slots = torch.randperm(399, generator=noise)[:150] + 1
        slots[100:120] = 0
        positions = torch.randint(0, 200, (150,), generator=noise, dtype=torch.int32)
        plain.decode(slots, positions)
        table = depth, Cursor(length, limit), counts
        cursor_kernel.decode(*table, slots.to(device), positions.to(device), interval, block)
        real = slots[slots != 0]
        for ours, wanted in ((depth, plain._depth), (length, plain.cursor.length), (limit, plain.cursor.limit)):
            assert torch.equal(ours.cpu()[real], wanted[real])
        assert torch.equal(counts.cpu(), plain.counts)


def tensors(slots: list[int], *others: list[int]) -> tuple[torch.Tensor, ...]:
    return torch.tensor(slots), *(torch.tensor(x, dtype=torch.int32) for x in others)
