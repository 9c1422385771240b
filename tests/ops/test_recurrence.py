import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdover.ops import slots as slots_module
from holdover.ops.recurrence import chunk
from tests.helpers import assert_close
from tests.ops.families import CASES, NATIVE, Case, painted_pool

LENGTHS = [1, 2, 3, 5, 31, 32, 33, 63, 64, 65, 200]
SLOTS = torch.tensor([4, 1])
RTOL = 5e-6

each_case = pytest.mark.parametrize("case", [*CASES, *NATIVE], ids=lambda case: case.name)


def random_pool(case: Case) -> torch.Tensor:
    pool = painted_pool(case)
    return pool.copy_(torch.randn(pool.shape, generator=torch.Generator().manual_seed(1)))


@each_case
@pytest.mark.parametrize("tokens", LENGTHS)
def test_sequence_equals_definition(case: Case, tokens: int) -> None:
    pool, arguments = random_pool(case), case.arguments(2, tokens, seed=tokens)
    out_ref, state_ref = case.reference(pool[SLOTS], arguments)
    out = case.ops.sequence(pool, SLOTS, *arguments)
    assert_close("outputs", out, out_ref, RTOL)
    assert_close("state", pool[SLOTS], state_ref, RTOL)
    for head in range(case.heads):
        assert_close(f"state of head {head}", pool[SLOTS][:, head], state_ref[:, head], RTOL)


@each_case
def test_steps_equal_definition(case: Case) -> None:
    pool, arguments = random_pool(case), case.arguments(2, 40)
    out_ref, state_ref = case.reference(pool[SLOTS], arguments)
    out = torch.stack([case.ops.step(pool, SLOTS, *case.at(arguments, t)) for t in range(40)], dim=1)
    assert_close("outputs", out, out_ref, RTOL)
    assert_close("state", pool[SLOTS], state_ref, RTOL)


@each_case
@pytest.mark.parametrize("tokens", [1, 7, 70])
def test_other_slots_stay_as_they_are(case: Case, tokens: int) -> None:
    pool, arguments = painted_pool(case), case.arguments(2, tokens)
    pool[0] = float("nan")  # a free slot
    before = pool.clone()
    out = case.ops.sequence(pool, SLOTS, *arguments)
    out_ref, state_ref = case.reference(before[SLOTS], arguments)
    assert_close("outputs", out, out_ref, RTOL)
    assert_close("state", pool[SLOTS], state_ref, RTOL)
    assert torch.equal(pool[[2, 3, 5]], before[[2, 3, 5]])
    assert pool[0].isnan().all()


@each_case
@pytest.mark.parametrize("slots", [[0, 1, 2], [2, 1, 0], [5], [0], [1, 3, 4]])
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("large", [0, 1 << 30])
@pytest.mark.parametrize("tokens", [1, 9])
def test_slots_in_any_order(
    case: Case, slots: list[int], contiguous: bool, large: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether states are advanced as views of the pool or copied out and back makes no difference."""
    monkeypatch.setattr(slots_module, "LARGE", large)
    pool, arguments = painted_pool(case), case.arguments(len(slots), tokens)
    pool = pool.contiguous() if contiguous else pool
    before = pool.clone()
    out = case.ops.sequence(pool, torch.tensor(slots), *arguments)
    out_ref, state_ref = case.reference(before[slots], arguments)
    assert_close("outputs", out, out_ref, RTOL)
    assert_close("state", pool[slots], state_ref, RTOL)
    others = [slot for slot in range(len(pool)) if slot not in slots]
    assert torch.equal(pool[others], before[others])


@each_case
def test_tiles_make_no_difference(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = case.arguments(2, 150)
    whole, tiled = painted_pool(case), painted_pool(case)
    expected = case.ops.sequence(whole, SLOTS, *arguments)
    monkeypatch.setattr(chunk, "TILE", 1)
    assert_close("outputs", case.ops.sequence(tiled, SLOTS, *arguments), expected, 1e-6)
    assert_close("state", tiled, whole, 1e-6)


@each_case
@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(1, 149), max_size=6, unique=True))
def test_any_split_equals_one_call(case: Case, cuts: list[int]) -> None:
    with torch.inference_mode():
        arguments = case.arguments(1, 150)
        whole, parts = painted_pool(case), painted_pool(case)
        slots = SLOTS[:1]
        expected = case.ops.sequence(whole, slots, *arguments)
        edges = [0, *sorted(cuts), 150]
        outputs = [
            case.ops.sequence(parts, slots, *case.at(arguments, slice(start, stop)))
            for start, stop in itertools.pairwise(edges)
        ]
    assert_close("outputs", torch.cat(outputs, dim=1), expected, RTOL)
    assert_close("state", parts[slots], whole[slots], RTOL)


@each_case
def test_split_at_a_chunk_is_bit_equal(case: Case) -> None:
    arguments = case.arguments(1, 77)
    whole, parts = painted_pool(case), painted_pool(case)
    slots = SLOTS[:1]
    expected = case.ops.sequence(whole, slots, *arguments)
    outputs = [case.ops.sequence(parts, slots, *case.at(arguments, s)) for s in (slice(0, 64), slice(64, 77))]
    assert torch.equal(torch.cat(outputs, dim=1), expected)
    assert torch.equal(parts[slots], whole[slots])


@each_case
@pytest.mark.parametrize("tokens", [1, 6, 40])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_inputs_lose_only_their_own_rounding(case: Case, tokens: int, dtype: torch.dtype) -> None:
    pool = random_pool(case)
    arguments = tuple(x if i in case.constant else x.to(dtype) for i, x in enumerate(case.arguments(2, tokens)))
    out_ref, state_ref = case.reference(pool[SLOTS], arguments)
    out = case.ops.sequence(pool, SLOTS, *arguments)
    assert out.dtype == dtype
    assert_close("outputs", out, out_ref, torch.finfo(dtype).eps)
    assert_close("state", pool[SLOTS], state_ref, RTOL)


@each_case
@pytest.mark.parametrize("tokens", [1, 3, 32, 50])
def test_views_are_read_and_left_alone(case: Case, tokens: int) -> None:
    """Arguments as strided views of wider tensors give what contiguous ones give, and are not written to."""
    pool, arguments = random_pool(case), case.arguments(1, tokens)
    expected_pool = pool.clone()
    expected = case.ops.sequence(expected_pool, SLOTS[:1], *arguments)
    views = []
    for x in arguments:
        wide = torch.full((*x.shape[:-1], x.shape[-1] + 3), float("nan")).movedim(-1, 0).contiguous().movedim(0, -1)
        views.append(wide[..., 1:-2].copy_(x))
    kept = [view.clone() for view in views]
    assert_close("outputs", case.ops.sequence(pool, SLOTS[:1], *views), expected, 1e-6)
    assert_close("pool", pool, expected_pool, 1e-6)
    for view, copy, x in zip(views, kept, arguments, strict=True):
        assert torch.equal(view, copy)
        assert torch.equal(view, x)


@pytest.mark.parametrize("case", [case for case in CASES if case.name != "mamba2"], ids=lambda case: case.name)
@pytest.mark.parametrize("per_token", [-0.7, -5.0, -20.0, -200.0])
def test_strong_decay_mixed_with_none(case: Case, per_token: float) -> None:
    """Tokens that forget everything between tokens that forget nothing: no overflow, no lost neighbours."""
    pool, arguments = random_pool(case), list(case.arguments(2, 100))
    at = 1 if case.constant else 3
    pick = torch.rand(arguments[at].shape, generator=torch.Generator().manual_seed(2))
    if case.constant:
        arguments[2] = torch.full_like(arguments[2], -1.0)
        arguments[1] = torch.where(pick < 0.4, -per_token, 1e-5)
    else:
        arguments[3] = torch.where(pick < 0.4, per_token, -1e-5)
    out_ref, state_ref = case.reference(pool[SLOTS], tuple(arguments))
    out = case.ops.sequence(pool, SLOTS, *arguments)
    assert_close("outputs", out, out_ref, 5e-5)
    assert_close("state", pool[SLOTS], state_ref, 5e-5)


@pytest.mark.parametrize("case", CASES[:3], ids=lambda case: case.name)
@pytest.mark.parametrize("noise", [0.0, 1e-3, 0.1, 1.0])
def test_parallel_keys_with_full_writes(case: Case, noise: float) -> None:
    """The hardest triangular systems: every key nearly the same, beta 1, decay none."""
    pool, arguments = random_pool(case), list(case.arguments(2, 128))
    g = torch.Generator().manual_seed(3)
    arguments[1] = torch.randn(arguments[1].shape[-1:], generator=g) + noise * arguments[1]
    arguments[3] = torch.full_like(arguments[3], -1e-6)
    arguments[4] = torch.ones_like(arguments[4])
    out_ref, state_ref = case.reference(pool[SLOTS], tuple(arguments))
    out = case.ops.sequence(pool, SLOTS, *arguments)
    assert_close("outputs", out, out_ref, 2e-5)
    assert_close("state", pool[SLOTS], state_ref, 2e-5)


@pytest.mark.parametrize("size", [8, 16, 32, 64])
@pytest.mark.parametrize("noise", [0.0, 0.01, 1.0])
def test_unit_lower_inverse(size: int, noise: float) -> None:
    g = torch.Generator().manual_seed(4)
    keys = torch.nn.functional.normalize(
        torch.randn(1, 1, 32, generator=g) + noise * torch.randn(5, size, 32, generator=g), dim=-1
    )
    lower = keys @ keys.mT
    exact = torch.linalg.inv(lower.double().tril(-1) + torch.eye(size, dtype=torch.float64))
    assert_close("inverse", chunk.unit_lower_inverse(lower), exact, 1e-5)


def test_spans_cover_every_token_once() -> None:
    for tokens in range(1, 200):
        spans = chunk.spans(torch.empty(1, tokens, 2, 4))
        assert [t for span in spans for t in range(span.start, span.stop)] == list(range(tokens))
        assert all(span.size % chunk.BLOCK == 0 for span in spans)
