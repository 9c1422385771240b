"""Convolution on a pool that keeps pace with a deferred log, in both forms, against the definition in float64.

Triton's kernels run on the GPU where there is one and in its interpreter elsewhere.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType

import pytest
import torch
from torch import Tensor

from holdover.errors import ConfigError
from holdover.ops.conv import naive
from holdover.ops.deferred import torch as plain
from holdover.ops.deferred.log import Cursor
from tests.helpers import assert_close
from tests.interpreter import require_triton

# one block of channels, and more than one
CHANNELS, MANY = 10, 300
RTOL = 1e-6
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

each_form = pytest.mark.parametrize("name", ["deferred", "triton"])
each_width = pytest.mark.parametrize("width", [2, 3, 4])


def form_of(name: str) -> ModuleType:
    if name == "triton":
        require_triton()
    return import_module(f"holdover.ops.conv.{name}")


@dataclass
class Pool:
    """Slots whose rows are NaN where they are not live, and the definition's histories beside them."""

    form: ModuleType
    rows: Tensor
    cursor: Cursor
    history: Tensor
    weight: Tensor
    bias: Tensor | None
    activation: str | None

    @classmethod
    def make(
        cls,
        name: str,
        width: int,
        capacity: int,
        slots: int = 5,
        dtype: torch.dtype = torch.float32,
        bias: bool = True,
        activation: str | None = "silu",
        channels: int = CHANNELS,
    ) -> Pool:
        wide = torch.full((slots, 2, width - 1 + capacity, channels), float("nan"), dtype=dtype)
        wide[1:, 1, : width - 1] = torch.randn(slots - 1, width - 1, channels).to(dtype)
        length = torch.zeros(slots, dtype=torch.int32, device=DEVICE)
        cursor = Cursor(length, torch.full_like(length, capacity))
        weight = torch.randn(width, channels).to(DEVICE, dtype).mT  # in strides of its own
        offset = torch.randn(channels).to(DEVICE, dtype) if bias else None
        history = wide[:, 1, : width - 1].double()
        return cls(form_of(name), wide.to(DEVICE)[:, 1], cursor, history, weight, offset, activation)

    @property
    def past(self) -> int:
        return self.weight.shape[1] - 1

    @property
    def capacity(self) -> int:
        return self.rows.shape[1] - self.past

    def copy(self) -> Pool:
        cursor = Cursor(*(x.clone() for x in self.cursor))
        return replace(self, rows=self.rows.clone(), cursor=cursor, history=self.history.clone())

    def expect(self, slots: list[int], x: Tensor) -> Tensor:
        """The definition's outputs; its histories move on."""
        bias = None if self.bias is None else self.bias.cpu().double()
        out, self.history[slots] = naive.convolution(
            self.history[slots], x.double(), self.weight.cpu().double(), bias, self.activation
        )
        return out

    def step(self, slots: list[int], x: Tensor, dense: bool = False) -> Tensor:
        index = torch.tensor(slots, device=DEVICE)
        out: Tensor = self.form.step(
            self.rows, self.cursor, index, x.to(DEVICE), self.weight, self.bias, self.activation
        )
        plain.advance(self.cursor, index, self.capacity, dense=dense)
        return out.cpu()

    def verify(self, slots: list[int], x: Tensor) -> Tensor:
        index = torch.tensor(slots, device=DEVICE)
        out: Tensor = self.form.verify(
            self.rows, self.cursor, index, x.to(DEVICE), self.weight, self.bias, self.activation
        )
        plain.advance(self.cursor, index, self.capacity, drafts=x.shape[1])
        return out.cpu()

    def fill(self, slot: int, count: int) -> None:
        for _ in range(count):
            x = torch.randn(1, self.rows.shape[2])
            self.expect([slot], x.unsqueeze(1))
            self.step([slot], x)
        assert self.cursor.length[slot] == count

    def newest(self, slot: int) -> Tensor:
        live = int(self.cursor.length[slot])
        return self.rows[slot, live : live + self.past].cpu()

    def check(self) -> None:
        """Every slot's newest inputs are the definition's, bit by bit; then poison what is not live."""
        assert self.rows[0].isnan().all()
        for slot in range(1, len(self.rows)):
            assert torch.equal(self.newest(slot).double(), self.history[slot])
            self.rows[slot, int(self.cursor.length[slot]) + self.past :] = float("nan")


@each_form
@each_width
@pytest.mark.parametrize("capacity", [0, 1, 2, 7])
def test_rollout(name: str, width: int, capacity: int) -> None:
    """Slots come and go in mixed phases, dense and deferred in turn, among padding."""
    pool, draw = (
        Pool.make(name, width, capacity, bias=width > 2, activation="silu" if width < 4 else None),
        random.Random(0),
    )
    pool.cursor.limit[1:3] = 0
    folds = appends = 0
    for t in range(4 * capacity + 8):
        slots = draw.sample(range(1, 5), draw.randint(1, 4))
        folds += sum(bool(pool.cursor.length[slot] >= pool.cursor.limit[slot]) for slot in slots)
        appends += sum(bool(pool.cursor.length[slot] < pool.cursor.limit[slot]) for slot in slots)
        x = torch.randn(len(slots) + 2, CHANNELS)
        expected = pool.expect(slots, x[1:-1].unsqueeze(1)).squeeze(1)
        out = pool.step([0, *slots, 0], x, dense=t % 16 > 11)
        assert_close("outputs", out[1:-1], expected, RTOL)
        assert (out[[0, -1]] == 0).all()
        pool.check()
    assert folds
    assert bool(appends) == (capacity > 0)


@each_form
@each_width
@pytest.mark.parametrize("drafts", [1, 2, 5])
def test_drafts_can_be_taken_back(name: str, width: int, drafts: int) -> None:
    """At every fill, across restarts: verify drafts, accept some, go on as if the others had never been."""
    every = name == "deferred" or DEVICE.type == "cuda"
    for fill in range(6) if every else (0, 2, 5):
        pool = Pool.make(name, width, 5, slots=3)
        pool.fill(2, fill)
        pool.check()
        x, following = torch.randn(3, drafts, CHANNELS), torch.randn(1, CHANNELS)
        before = pool.history.clone()
        expected = pool.expect([2], x[1:2])
        out = pool.verify([0, 2, 0], x)
        assert_close("drafts", out[1:2], expected, RTOL)
        assert (out[[0, 2]] == 0).all()
        pool.check()
        for accepted in range(drafts + 1):
            taken = replace(pool.copy(), history=before.clone())
            if accepted:
                taken.expect([2], x[1:2, :accepted])
            index, counts = torch.tensor([2], device=DEVICE), torch.tensor([drafts - accepted], device=DEVICE)
            plain.rollback(taken.cursor, index, counts.int())
            taken.check()
            expected = taken.expect([2], following.unsqueeze(1)).squeeze(1)
            assert_close("next output", taken.step([2], following), expected, RTOL)
            taken.check()


@each_form
@each_width
def test_settle_at_every_fill(name: str, width: int) -> None:
    pool = Pool.make(name, width, 6, slots=9, channels=MANY)
    for slot in range(1, 8):
        pool.fill(slot, slot - 1)
    pool.check()
    other = pool.rows[8].clone()
    slots = [7, 3, 1, 2, 5, 6, 4]
    pool.form.settle(pool.rows, pool.cursor, torch.tensor([0, *slots], device=DEVICE))
    pool.cursor.length.zero_()
    pool.check()
    assert torch.equal(pool.rows[8].nan_to_num(7.0), other.nan_to_num(7.0))


@each_form
@each_width
def test_materialise_leaves_the_source(name: str, width: int) -> None:
    pool = Pool.make(name, width, 6, slots=14)
    for slot in range(1, 8):
        pool.fill(slot, slot - 1)
    pool.check()
    before = pool.rows.clone()
    sources, targets = [7, 3, 1, 1, 5, 6, 4], [8, 9, 10, 0, 12, 13, 11]
    pool.form.materialise(
        pool.rows, pool.cursor, torch.tensor(sources, device=DEVICE), torch.tensor(targets, device=DEVICE)
    )
    for source, target in zip(sources, targets, strict=True):
        if target:
            pool.history[target] = pool.history[source]
    assert torch.equal(pool.rows[:8].nan_to_num(7.0), before[:8].nan_to_num(7.0))
    pool.check()


@each_form
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision(name: str, dtype: torch.dtype) -> None:
    """The products and their sum are fp32: only the output is rounded."""
    pool = Pool.make(name, 4, 3, dtype=dtype)
    for _ in range(6):
        x = torch.randn(2, CHANNELS).to(dtype)
        expected, out = pool.expect([3, 1], x.unsqueeze(1)).squeeze(1), pool.step([3, 1], x)
        assert out.dtype == dtype
        assert_close("outputs", out, expected, torch.finfo(dtype).eps)
        pool.check()
    x = torch.randn(2, 3, CHANNELS).to(dtype)
    expected, out = pool.expect([3, 1], x), pool.verify([3, 1], x)
    assert out.dtype == dtype
    assert_close("drafts", out, expected, torch.finfo(dtype).eps)
    pool.check()


@each_form
def test_inputs_may_be_views(name: str) -> None:
    pool = Pool.make(name, 4, 3, channels=MANY)
    joined = torch.full((2, 4, 3 * MANY), float("nan"))
    joined[..., MANY : 2 * MANY] = torch.randn(2, 4, MANY)
    x = joined[..., MANY : 2 * MANY]
    expected = pool.expect([3, 1], x)
    assert_close("output", pool.step([3, 1], x[:, 0]), expected[:, 0], RTOL)
    assert_close("drafts", pool.verify([3, 1], x[:, 1:]), expected[:, 1:], RTOL)
    pool.check()


@each_form
def test_unknown_activation_is_refused(name: str) -> None:
    pool = replace(Pool.make(name, 4, 3), activation="gelu")
    with pytest.raises(ValueError, match="gelu"):
        pool.step([1], torch.zeros(1, CHANNELS))
    with pytest.raises(ValueError, match="gelu"):
        pool.verify([1], torch.zeros(1, 2, CHANNELS))


def test_kernels_refuse_what_they_cannot_read() -> None:
    pool = Pool.make("triton", 4, 3)
    with pytest.raises(ConfigError, match="contiguous"):
        replace(pool, rows=pool.rows.mT.contiguous().mT).step([1], torch.zeros(1, CHANNELS))
    with pytest.raises(ConfigError, match="raise the merge interval"):
        pool.verify([1], torch.zeros(1, 4, CHANNELS))
