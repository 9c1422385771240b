"""Deferred recurrence in every form against the dense definition in float64.

Triton's kernels run on the GPU where there is one and in its interpreter elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import product
from types import ModuleType

import pytest
import torch
from torch import Tensor

from holdover.errors import ConfigError
from holdover.ops.deferred import naive
from holdover.ops.deferred import torch as plain
from holdover.ops.deferred.family import FAMILIES, Family, Inputs
from holdover.ops.deferred.log import Cursor, Log, LogLayout
from tests.helpers import assert_close
from tests.interpreter import require_triton
from tests.ops.families import CASES, RWKV6, Case

EVERY = [*CASES, RWKV6]
RTOL = 1e-5
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

each_case = pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
each_form = pytest.mark.parametrize("name", ["torch", "triton"])


def form_of(name: str) -> ModuleType:
    if name == "triton":
        require_triton()
    return import_module(f"holdover.ops.deferred.{name}")


def small(case: Case) -> Case:
    """A size at which the interpreter is quick; grouped heads stay grouped."""
    group = case.heads // case.key_heads
    return replace(case, heads=max(1, min(group, 2)), key_heads=1, d_k=8, d_v=8)


def family_of(case: Case) -> Family:
    return FAMILIES[case.name.split("-")[0]]


@dataclass
class Pool:
    """One layer's slots. Free memory is NaN, so is slot 0, and what no one may touch is compared at the end."""

    case: Case
    form: ModuleType
    layout: LogLayout
    base: Tensor
    log: Log
    cursor: Cursor

    @classmethod
    def make(
        cls,
        case: Case,
        name: str,
        merge_interval: int,
        slots: int,
        dtype: torch.dtype = torch.float32,
        values: torch.dtype | None = None,
    ) -> Pool:
        shape = (case.heads, case.key_heads, case.d_k, case.d_v)
        layout = LogLayout(family_of(case), *shape, merge_interval, key_dtype=dtype, value_dtype=values)
        wide = torch.full((slots, 2, case.heads, case.d_k, case.d_v), float("nan"))
        wide[1:, 1] = torch.randn(wide[1:, 1].shape, generator=torch.Generator().manual_seed(1))
        length = torch.zeros(slots, dtype=torch.int32, device=DEVICE)
        cursor = Cursor(length, torch.full_like(length, layout.capacity))
        pool = cls(case, form_of(name), layout, wide.to(DEVICE)[:, 1], layout.allocate(slots, DEVICE), cursor)
        for tensor in pool.log_tensors():
            tensor.fill_(float("nan"))
        return pool

    def copy(self) -> Pool:
        log = self.log
        scales = None if log.scales is None else log.scales.clone()
        copied = Log(log.layout, log.keys.clone(), log.values.clone(), log.decays.clone(), scales)
        return replace(self, base=self.base.clone(), log=copied, cursor=Cursor(*(x.clone() for x in self.cursor)))

    def log_tensors(self) -> list[Tensor]:
        return [x for x in (self.log.keys, self.log.values, self.log.decays, self.log.scales) if x is not None]

    def inputs(self, arguments: tuple[Tensor, ...]) -> Inputs:
        return family_of(self.case).pack(*(x.to(DEVICE) for x in arguments))

    def step(
        self, slots: list[int], arguments: tuple[Tensor, ...], form: ModuleType | None = None, dense: bool = False
    ) -> Tensor:
        index = torch.tensor(slots, device=DEVICE)
        form = form or self.form
        out = form.step(self.base, self.log, self.cursor, index, self.inputs(arguments))
        form.advance(self.cursor, index, self.layout.capacity, dense=dense)
        return out.cpu()

    def verify(self, slots: list[int], arguments: tuple[Tensor, ...]) -> Tensor:
        index, inputs = torch.tensor(slots, device=DEVICE), self.inputs(arguments)
        out = self.form.verify(self.base, self.log, self.cursor, index, inputs)
        self.form.advance(self.cursor, index, self.layout.capacity, drafts=inputs.v.shape[1])
        return out.cpu()

    def states(self, slots: list[int]) -> Tensor:
        return plain.logical(self.base, self.log, self.cursor, torch.tensor(slots, device=DEVICE)).cpu()

    def fill(self, slots: list[int], fills: Sequence[int]) -> None:
        """Bring each slot to a log of so many entries, by the plain form."""
        arguments = self.case.arguments(len(slots), max(fills, default=0), seed=100)
        for t in range(max(fills, default=0)):
            rows = [i for i, fill in enumerate(fills) if t < fill]
            one = tuple(x if i in self.case.constant else x[rows, t] for i, x in enumerate(arguments))
            self.step([slots[i] for i in rows], one, form=plain)
        assert self.cursor.length[slots].tolist() == list(fills)


@each_case
@pytest.mark.parametrize("merge_interval", [1, 2, 3, 5, 8])
def test_definition_equals_dense(case: Case, merge_interval: int) -> None:
    """Eq. 4 to 7 keep the logical state at every fill, exactly."""
    family, arguments = family_of(case), tuple(x.double() for x in case.arguments(2, 20))
    dense = torch.randn(2, case.heads, case.d_k, case.d_v, dtype=torch.float64)
    state = naive.empty(dense)
    for t in range(20):
        one = case.at(arguments, t)
        expected, dense = case.naive.recurrence(dense, *case.at(arguments, slice(t, t + 1)))
        output, state = naive.step(family, state, family.pack(*one), merge_interval)
        assert len(state.log) == (t + 1) % merge_interval
        assert_close("output", output, expected[:, 0], 1e-12)
        assert_close("state", naive.logical(state), dense, 1e-12)
    assert_close("folded", naive.fold(state).base, dense, 1e-12)


@each_case
@each_form
# a kernel reads eight entries at a time: fewer, as many, some more, and several times as many
@pytest.mark.parametrize("merge_interval", [1, 2, 3, 5, 9, 16, 33, 64])
def test_step_at_every_fill(case: Case, name: str, merge_interval: int) -> None:
    """Slots in every phase and a padding row share one step; nothing else moves."""
    case, fills = small(case), list(range(merge_interval))
    if merge_interval > 16:
        fills = [0, 1, 17, merge_interval - 2, merge_interval - 1]
    slots = list(range(1, len(fills) + 1))
    pool = Pool.make(case, name, merge_interval, len(slots) + 2)
    pool.fill(slots, fills)
    other = pool.base[-1].clone()
    arguments = case.arguments(len(slots) + 1, 1, seed=7)
    expected, dense = case.reference(pool.states(slots), case.at_rows(arguments, slice(1, None)))
    out = pool.step([0, *slots], case.at(arguments, 0))
    assert_close("outputs", out[1:], expected[:, 0], RTOL)
    assert_close("states", pool.states(slots), dense, RTOL)
    assert pool.cursor.length.tolist() == [0, *((fill + 1) % merge_interval for fill in fills), 0]
    assert (out[0] == 0).all()
    assert torch.equal(pool.base[-1], other)
    assert all(x[[0, -1]].isnan().all() for x in [pool.base[:1], *pool.log_tensors()])


@each_case
@each_form
def test_several_tiles_and_heads(case: Case, name: str) -> None:
    case = replace(case, heads=2 * case.heads // case.key_heads, key_heads=2)
    pool = Pool.make(case, name, 3, 4)
    for slot, count in ((1, 1), (2, 2), (3, 3)):
        for t in range(count):
            pool.step([slot], case.at(case.arguments(1, 3, seed=slot), t), form=plain)
    arguments = case.arguments(3, 1, seed=9)
    expected, dense = case.reference(pool.states([3, 1, 2]), arguments)
    assert_close("outputs", pool.step([3, 1, 2], case.at(arguments, 0)), expected[:, 0], RTOL)
    assert_close("states", pool.states([3, 1, 2]), dense, RTOL)


@each_case
@each_form
def test_rollout(case: Case, name: str) -> None:
    """Tokens of sequences that start one after the other, against float64; errors do not grow."""
    starts, tokens = (0, 3, 5), 128
    if name == "triton":
        case = small(case)
        if DEVICE.type != "cuda":
            starts, tokens = starts[:1], 32
    slots = list(range(1, len(starts) + 1))
    pool = Pool.make(case, name, 8, 4)
    arguments, start_states = case.arguments(len(starts), tokens), pool.states(slots)
    outputs: list[list[Tensor]] = [[] for _ in starts]
    for t in range(tokens + starts[-1]):
        rows = [i for i, start in enumerate(starts) if start <= t < start + tokens]
        one = [case.at_rows(case.at(arguments, t - starts[i]), slice(i, i + 1)) for i in rows]
        joined = tuple(x[0] if j in case.constant else torch.cat(x) for j, x in enumerate(zip(*one, strict=True)))
        for i, out in zip(rows, pool.step([i + 1 for i in rows], joined), strict=True):
            outputs[i].append(out)
    expected, dense = case.reference(start_states, arguments)
    out = torch.stack([torch.stack(x) for x in outputs])
    half = tokens // 2
    assert_close("first outputs", out[:, :half], expected[:, :half], RTOL)
    assert_close("last outputs", out[:, half:], expected[:, half:], RTOL)
    assert_close("states", pool.states(slots), dense, RTOL)


@each_case
@each_form
@pytest.mark.parametrize("drafts", [1, 3, 8])
def test_drafts_can_be_taken_back(case: Case, name: str, drafts: int) -> None:
    """At every fill, across folds: verify drafts, accept some, go on as if the others had never been."""
    case, capacity = small(case), 9
    every = name == "torch" or DEVICE.type == "cuda"
    for fill in range(0, capacity + 1, 1 if every else 3):
        pool = Pool.make(case, name, capacity + 1, 3)
        pool.fill([2], [fill])
        arguments, before = case.arguments(2, drafts, seed=11), pool.states([2])
        real = case.at_rows(arguments, slice(1, None))
        expected, dense = case.reference(before, real)
        out = pool.verify([0, 2], arguments)
        assert (out[0] == 0).all()
        assert_close("drafts", out[1:], expected, RTOL)
        assert_close("state after drafts", pool.states([2]), dense, RTOL)
        assert pool.base[0].isnan().all()
        for accepted in range(drafts + 1) if every else (drafts // 2,):
            go_on_after(pool.copy(), case, before, real, accepted)


def go_on_after(pool: Pool, case: Case, before: Tensor, drafts: tuple[Tensor, ...], accepted: int) -> None:
    """Take back all but ``accepted`` drafts of slot 2 and run one more token."""
    following = case.arguments(1, 1, seed=12)
    following = tuple(drafts[i] if i in case.constant else x for i, x in enumerate(following))
    dense = before.double()
    if accepted:
        _, dense = case.reference(before, case.at(drafts, slice(0, accepted)))
    taken = pool.inputs(drafts).v.shape[1] - accepted
    index, counts = torch.tensor([0, 2], device=DEVICE), torch.tensor([7, taken], dtype=torch.int32, device=DEVICE)
    pool.form.rollback(pool.cursor, index, counts)
    assert pool.cursor.length.tolist()[:2] == [0, 0]
    assert_close("state taken back", pool.states([2]), dense, RTOL)
    expected, dense = case.reference(dense, following)
    assert_close("next output", pool.step([2], case.at(following, 0), form=plain), expected[:, 0], RTOL)
    assert_close("next state", pool.states([2]), dense, RTOL)


@each_case
@each_form
def test_fold_writes_what_the_log_says(case: Case, name: str) -> None:
    case, slots = small(case), [1, 2, 3, 4]
    pool = Pool.make(case, name, 4, 6)
    pool.fill(slots, range(4))
    expected = pool.states(slots)
    index, other = torch.tensor([0, *slots], device=DEVICE), pool.base[5].clone()

    pool.form.fold(pool.base, pool.log, pool.cursor, index, room=2)
    roomy = pool.base[[1, 2]].clone()
    pool.cursor.length[[3, 4]] = 0  # fills 2 and 3 had no room for two entries more
    assert_close("with room", pool.states(slots), expected, RTOL)
    assert torch.equal(pool.base[[1, 2]], roomy)
    pool.form.fold(pool.base, pool.log, pool.cursor, index)
    pool.cursor.length[1:] = 0
    assert_close("all", pool.base[slots].cpu(), expected, RTOL)
    assert torch.equal(pool.base[5], other)
    assert pool.base[0].isnan().all()


@each_case
@each_form
def test_materialise_at_every_fill(case: Case, name: str) -> None:
    """A copy of the logical state is what a fold would write; source and log stay, bit by bit."""
    case, slots, targets = small(case), [1, 2, 3, 4], [8, 5, 7, 6]
    pool = Pool.make(case, name, 4, 10)
    pool.fill(slots, range(4))
    folded, before = pool.copy(), pool.copy()
    folded.form.fold(folded.base, folded.log, folded.cursor, torch.tensor(slots, device=DEVICE))

    sources = torch.tensor([*slots, 3, 2], device=DEVICE)
    pool.form.materialise(pool.base, pool.log, pool.cursor, sources, torch.tensor([*targets, 0, 9], device=DEVICE))
    assert torch.equal(pool.base[targets], folded.base[slots])
    assert torch.equal(pool.base[9], folded.base[2])
    assert torch.equal(pool.base[8], before.base[1])  # an empty log
    assert torch.equal(pool.base[slots], before.base[slots])
    assert pool.base[0].isnan().all()
    for one, other in zip((*pool.log_tensors(), *pool.cursor), (*before.log_tensors(), *before.cursor), strict=True):
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


@each_case
@each_form
def test_steps_at_mixed_limits(case: Case, name: str) -> None:
    """A slot folds at its own limit, and at any fill beyond it; what is not live stays out."""
    case, capacity = small(case), 2
    fills, limits = zip(*product(range(capacity + 1), repeat=2), strict=True)
    slots = list(range(1, len(fills) + 1))
    pool = Pool.make(case, name, capacity + 1, len(slots) + 1)
    pool.fill(slots, fills)
    pool.cursor.limit[1:] = torch.tensor(limits, dtype=torch.int32)
    before, arguments = pool.copy(), case.arguments(len(slots), 1, seed=13)
    expected, dense = case.reference(pool.states(slots), arguments)
    assert_close("outputs", pool.step(slots, case.at(arguments, 0)), expected[:, 0], RTOL)
    assert_close("states", pool.states(slots), dense, RTOL)
    for slot, fill, limit in zip(slots, fills, limits, strict=True):
        assert pool.cursor.length[slot] == (0 if fill >= limit else fill + 1)
        assert torch.equal(pool.base[slot], before.base[slot]) == (fill < limit)


@each_case
@each_form
def test_dense_and_deferred_in_turn(case: Case, name: str) -> None:
    """Dense from the start, deferred, dense again; while dense, no step touches the log."""
    case, slots, capacity = small(case), [2, 3], 3
    pool = Pool.make(case, name, capacity + 1, 4)
    pool.cursor.limit.zero_()
    state, logged = pool.states(slots), []
    turns = [True] * 2 + [False] * 7 + [True] * 6
    arguments = case.arguments(2, len(turns), seed=14)
    for t, dense in enumerate(turns):
        expected, state = case.reference(state, case.at(arguments, slice(t, t + 1)))
        assert_close("outputs", pool.step(slots, case.at(arguments, t), dense=dense), expected[:, 0], RTOL)
        assert_close("states", pool.states(slots), state, RTOL)
        logged.append(not pool.log.keys.isnan().all())
        if pool.cursor.limit[slots].eq(0).all():
            pool.log.keys.fill_(float("nan"))
    assert logged[:2] == [False, False]
    assert logged[3]
    assert logged[-2:] == [False, False]
    assert pool.cursor.length[slots].tolist() == pool.cursor.limit[slots].tolist() == [0, 0]


@each_case
@each_form
@pytest.mark.parametrize("per_token", [-0.7, -5.0, -200.0, float("-inf")])
def test_strong_decay_mixed_with_none(case: Case, name: str, per_token: float) -> None:
    """Tokens that forget everything between tokens that forget nothing: no overflow, and the log is not lost."""
    case, tokens = small(case), 9
    pool = Pool.make(case, name, 6, 2)
    arguments = list(case.arguments(1, tokens))
    at = 1 if case.name.startswith("mamba2") else 3
    pick = torch.rand(arguments[at].shape, generator=torch.Generator().manual_seed(2)) < 0.4
    if at == 1:
        arguments[2] = torch.full_like(arguments[2], -1.0)
        arguments[1] = torch.where(pick, max(-200.0, per_token), torch.tensor(-1e-5)).neg()
    else:
        arguments[3] = torch.where(pick, per_token, torch.tensor(-1e-5))
    expected, dense = case.reference(pool.states([1]), tuple(arguments))
    out = torch.stack([pool.step([1], case.at(tuple(arguments), t)) for t in range(tokens)], dim=1)
    assert_close("outputs", out, expected, 5e-5)
    assert_close("states", pool.states([1]), dense, 5e-5)


@each_case
@each_form
def test_low_precision_inputs_lose_only_their_own_rounding(case: Case, name: str) -> None:
    """bf16 activations, keys logged raw: the state is as good as with fp32 ones."""
    case, tokens = small(case), 11
    pool = Pool.make(case, name, 4, 2, dtype=torch.bfloat16)
    arguments = tuple(x if i in case.constant else x.bfloat16() for i, x in enumerate(case.arguments(1, tokens)))
    expected, dense = case.reference(pool.states([1]), arguments)
    out = torch.stack([pool.step([1], case.at(arguments, t)) for t in range(tokens)], dim=1)
    assert out.dtype == torch.bfloat16
    assert_close("outputs", out, expected, torch.finfo(torch.bfloat16).eps)
    assert_close("states", pool.states([1]), dense, RTOL)


@pytest.mark.parametrize("case", [CASES[1], *CASES[2:4], RWKV6], ids=lambda case: case.name)
@pytest.mark.parametrize(("keys", "values"), [(torch.bfloat16, torch.float32), (torch.float16, torch.bfloat16)])
def test_entries_may_be_narrower_than_the_inputs(case: Case, keys: torch.dtype, values: torch.dtype) -> None:
    case, slots = small(case), [1, 2, 3, 4]
    pool = Pool.make(case, "triton", 4, 6, keys, values)
    pool.fill(slots, [0, 1, 2, 3])
    twin = replace(pool.copy(), form=plain)
    arguments = case.arguments(len(slots), 3, seed=7)
    one = case.at(arguments, 0)
    assert_close("outputs", pool.step(slots, one), twin.step(slots, one), RTOL)
    # what the same sum is rounded to may be the next number
    assert_close("states", pool.states(slots), twin.states(slots), 1e-2)
    drafts = (replace(pool.copy(), form=form) for form in (form_of("triton"), plain))
    found, wanted = (each.verify(slots, arguments) for each in drafts)
    assert_close("first draft", found[:, 0], wanted[:, 0], RTOL)
    assert_close("drafts", found, wanted, 1e-2)


@each_form
def test_inputs_may_be_views(name: str) -> None:
    case = small(CASES[1])
    pool, twin = Pool.make(case, name, 3, 3), Pool.make(case, name, 3, 3)
    for t in range(3):
        arguments = case.at(case.arguments(2, 3), t)
        wide = [torch.full((x.shape[0], 3, *x.shape[1:]), float("nan")) for x in arguments]
        views = tuple(w[:, 1].copy_(x) for w, x in zip(wide, arguments, strict=True))
        transposed = (arguments[0].mT.contiguous().mT, *views[1:])
        assert_close("outputs", pool.step([2, 1], transposed), twin.step([2, 1], arguments), 1e-6)
    assert_close("states", pool.states([1, 2]), twin.states([1, 2]), 1e-6)


@each_form
def test_the_output_goes_where_it_is_wanted(name: str) -> None:
    case, form = small(CASES[0]), form_of(name)
    pool, twin = Pool.make(case, name, 3, 3), Pool.make(case, name, 3, 3)
    index, inputs = torch.tensor([2, 1], device=DEVICE), pool.inputs(case.at(case.arguments(2, 1), 0))
    wanted = form.step(twin.base, twin.log, twin.cursor, index, inputs)
    out = torch.full_like(wanted, torch.nan)
    assert form.step(pool.base, pool.log, pool.cursor, index, inputs, out=out) is out
    assert torch.equal(out, wanted)


def test_kernels_refuse_what_they_cannot_read() -> None:
    case, form = small(CASES[0]), form_of("triton")
    pool = Pool.make(case, "triton", 3, 2)
    index = torch.tensor([1], device=DEVICE)
    inputs = pool.inputs(case.at(case.arguments(1, 1), 0))
    with pytest.raises(ConfigError, match="contiguous"):
        form.step(pool.base.mT, pool.log, pool.cursor, index, inputs)
    with pytest.raises(ConfigError, match="raise the merge interval"):
        form.verify(pool.base, pool.log, pool.cursor, index, pool.inputs(case.arguments(1, 3)))
