import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from holdover.ops.recurrence import fla
from tests.helpers import assert_close
from tests.ops.families import CASES, Case, painted_pool

# widths that models have; unequal, so that a transposed state does not pass
WIDE = [replace(case, d_k=128, d_v=64) for case in CASES]
SLOTS = torch.tensor([4, 1])
# tokens in one of the kernels' chunks
CHUNK = 64
# Bf16 rounds by up to 2^-9. Keys, queries, updates and the state that a chunk reads are rounded in turn and
# independently, also where only fp32 is carried on: a few such roundings add up to less than bf16's epsilon.
RTOL = 2.0**-7

gpu = pytest.mark.gpu
each_case = pytest.mark.parametrize("case", WIDE, ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def forget_what_is_installed() -> Iterator[None]:
    fla.sequence.cache_clear()
    yield
    fla.sequence.cache_clear()


def kernels(case: Case) -> Callable[..., Tensor]:
    op = fla.sequence(case.ops.__name__.split(".")[-2])
    if op is None:
        pytest.skip("fla is not installed")
    return op


def random_pool(case: Case) -> Tensor:
    """Random states in a pool strided over slots; slot 0 is free and holds NaN."""
    pool = painted_pool(case)
    pool.copy_(torch.randn(pool.shape, generator=torch.Generator().manual_seed(1)))
    pool[0] = float("nan")
    layers = torch.full((len(pool), 2, *pool.shape[1:]), float("nan"), device="cuda")
    return layers[:, 1].copy_(pool)


def on_gpu(case: Case, arguments: tuple[Tensor, ...], dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, ...]:
    """Arguments as a mixer hands them over: projections as views in the model's dtype, decays in fp32."""
    name = case.ops.__name__.split(".")[-2]
    in_fp32 = {1, 2, 5} if name == "mamba2" else {3}
    moved = []
    for i, x in enumerate(arguments):
        x = x.to("cuda", torch.float32 if i in in_fp32 else dtype)
        moved.append(x if i in case.constant else torch.stack([x, torch.full_like(x, float("nan"))], dim=2)[:, :, 0])
    return tuple(moved)


def assert_states_close(got: Tensor, ref: Tensor, rtol: float) -> None:
    for head in range(ref.shape[1]):
        assert_close(f"state of head {head}", got[:, head], ref[:, head], rtol)


@gpu
@each_case
@pytest.mark.parametrize("tokens", [1, 7, fla.SHORT, fla.SHORT + 1, 63, 64, 65, 200])
def test_resumed_sequences_equal_definition(case: Case, tokens: int) -> None:
    """From a state that is not zero, and resumed twice."""
    op, pool, slots = kernels(case), random_pool(case), SLOTS.cuda()
    before = pool.clone()
    edges = [0, tokens, tokens + CHUNK + 1, tokens + CHUNK + 8]
    arguments = on_gpu(case, case.arguments(2, edges[-1], seed=tokens))
    kept = [x.clone() for x in arguments]
    out_ref, state_ref = case.reference(before[slots], arguments)
    outputs = [op(pool, slots, *case.at(arguments, slice(*edge))) for edge in itertools.pairwise(edges)]
    out = torch.cat(outputs, dim=1)
    assert out.dtype == torch.bfloat16
    assert_close("outputs", out, out_ref, RTOL)
    assert_states_close(pool[slots], state_ref, RTOL)
    assert torch.equal(pool[[2, 3, 5]], before[[2, 3, 5]])
    assert pool[0].isnan().all()
    assert all(torch.equal(x, copy) for x, copy in zip(arguments, kept, strict=True))


@gpu
@each_case
def test_long_sequence(case: Case) -> None:
    """Rounding stays what it is in a short sequence, also in heads that forget half in 100,000 tokens."""
    op, pool, slots = kernels(case), random_pool(case), SLOTS[:1].cuda()
    arguments = on_gpu(case, case.arguments(1, 4096))
    out_ref, state_ref = case.reference(pool[slots], arguments)
    assert_close("outputs", op(pool, slots, *arguments), out_ref, RTOL)
    assert_states_close(pool[slots], state_ref, RTOL)


@gpu
@each_case
def test_decay_alone_is_exact(case: Case) -> None:
    """Where nothing is written, no state passes through bf16."""
    op, pool, slots = kernels(case), random_pool(case), SLOTS[:1].cuda()
    arguments = list(on_gpu(case, case.arguments(1, 1000)))
    written = 0 if case.constant else 4  # x, beta
    arguments[written] = torch.zeros_like(arguments[written])
    _, state_ref = case.reference(pool[slots], tuple(arguments))
    op(pool, slots, *arguments)
    # the fastest head is zero after 1000 half-lives, or a denormal
    assert_states_close(pool[slots][:, 1:], state_ref[:, 1:], 1e-4)


@gpu
@each_case
@pytest.mark.parametrize("per_token", [-5.0, -200.0])
def test_strong_decay_mixed_with_none(case: Case, per_token: float) -> None:
    op, pool, slots = kernels(case), random_pool(case), SLOTS.cuda()
    arguments = list(case.arguments(2, 200))
    at = 1 if case.constant else 3
    pick = torch.rand(arguments[at].shape, generator=torch.Generator().manual_seed(2))
    if case.constant:
        arguments[2] = torch.full_like(arguments[2], -1.0)
        arguments[1] = torch.where(pick < 0.1, -per_token, 1e-5)
        # writes of one size, which the skip would hide
        arguments[0] = arguments[0] / arguments[1].unsqueeze(-1)
        arguments[5] = torch.zeros_like(arguments[5])
    else:
        arguments[3] = torch.where(pick < 0.1, per_token, -1e-5)
    moved = on_gpu(case, tuple(arguments))
    out_ref, state_ref = case.reference(pool[slots], moved)
    assert_close("outputs", op(pool, slots, *moved), out_ref, RTOL)
    assert_close("state", pool[slots], state_ref, RTOL)


@gpu
@pytest.mark.parametrize("case", WIDE[:3], ids=lambda case: case.name)
def test_short_keys_are_normalised_as_ours(case: Case) -> None:
    """Keys and queries so short that the l2 norm's epsilon is most of it."""
    op, pool, slots = kernels(case), random_pool(case), SLOTS.cuda()
    q, k, *rest = case.arguments(2, 70)
    arguments = on_gpu(case, (q * 1e-4, k * 1e-4, *rest))
    out_ref, state_ref = case.reference(pool[slots], arguments)
    assert_close("outputs", op(pool, slots, *arguments), out_ref, RTOL)
    assert_states_close(pool[slots], state_ref, RTOL)


@gpu
@each_case
def test_split_at_a_chunk_is_bit_equal(case: Case) -> None:
    op, whole, slots = kernels(case), random_pool(case), SLOTS.cuda()
    parts = whole.clone()
    arguments = on_gpu(case, case.arguments(2, 3 * CHUNK + 9))
    expected = op(whole, slots, *arguments)
    cuts = (slice(0, CHUNK), slice(CHUNK, None))
    outputs = [op(parts, slots, *case.at(arguments, cut)) for cut in cuts]
    assert torch.equal(torch.cat(outputs, dim=1), expected)
    assert torch.equal(parts[slots], whole[slots])


@gpu
@each_case
@pytest.mark.parametrize(
    ("dtype", "tokens"), [(torch.float32, 70), (torch.float16, 70), (torch.bfloat16, 1)], ids=["fp32", "fp16", "one"]
)
def test_what_the_kernels_would_round_stays_ours(case: Case, dtype: torch.dtype, tokens: int) -> None:
    op, pool, slots = kernels(case), random_pool(case), SLOTS.cuda()
    expected_pool = pool.clone()
    arguments = on_gpu(case, case.arguments(2, tokens), dtype)
    expected = case.ops.sequence(expected_pool, slots, *arguments)
    assert torch.equal(op(pool, slots, *arguments), expected)
    assert torch.equal(pool[slots], expected_pool[slots])


def install(folder: Path, release: str) -> None:
    """The metadata of a release of fla, without its code."""
    info = folder / f"fla_core-{release}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fla-core\nVersion: {release}\n")


@pytest.mark.parametrize(
    ("release", "offered"), [("0.4.2", False), ("0.6.0", True), ("0.10.1rc1", True), ("1.0", True)]
)
def test_old_releases_are_left_alone(
    release: str, offered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, release)
    monkeypatch.syspath_prepend(tmp_path)
    assert [fla.sequence(family) is not None for family in ("gdn", "kda", "mamba2")] == [offered] * 3
    assert fla.sequence("rwkv6") is None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_without_a_gpu_fla_is_not_imported(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "0.6.0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "fla", None)  # an import would raise
    pool = painted_pool(case)
    expected_pool, arguments = pool.clone(), tuple(x.bfloat16() for x in case.arguments(2, 40))
    expected = case.ops.sequence(expected_pool, SLOTS, *arguments)
    assert torch.equal(kernels(case)(pool, SLOTS, *arguments), expected)
    assert torch.equal(pool, expected_pool)
