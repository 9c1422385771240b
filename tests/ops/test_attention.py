import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from holdover.ops.attention import naive
from holdover.ops.attention import torch as attention
from tests.helpers import assert_close

ROWS = 600


def scattered_rows(lengths: list[int]) -> list[Tensor]:
    """Distinct rows in no order; every other row of a plane is free."""
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(len(lengths)))
    return list(order[: sum(lengths)].split(lengths))


def plane(rows: list[Tensor], heads: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A strided plane whose free rows are NaN."""
    x = torch.full((ROWS, 2, heads, width), float("nan"), dtype=dtype)[:, 1]
    for sequence in rows:
        x[sequence] = torch.randn(len(sequence), heads, width).to(dtype)
    return x


def check(
    tokens: int,
    lengths: list[int],
    heads: tuple[int, int] = (4, 2),
    widths: tuple[int, int] = (16, 16),
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
    rtol: float = 2e-6,
    positions: Tensor | None = None,
    device: str = "cpu",
) -> None:
    rows = scattered_rows(lengths)
    keys, values = plane(rows, heads[1], widths[0], dtype), plane(rows, heads[1], widths[1], dtype)
    q = torch.randn(len(lengths), heads[0], tokens, widths[0]).to(dtype).transpose(1, 2)
    there = [x.to(device) for x in (q, keys, values)]
    at = None if positions is None else positions.to(device)
    out = attention.paged_attention(*there, [x.to(device) for x in rows], 0.3, window, at).cpu()
    assert out.dtype == dtype
    expected = naive.paged_attention(q.double(), keys.double(), values.double(), rows, 0.3, window, positions)
    assert_close("attention", out, expected, rtol)


@pytest.mark.parametrize("tokens", [1, 2, 7, 70])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("widths", [(16, 16), (16, 24)])
def test_equals_definition(tokens: int, heads: tuple[int, int], widths: tuple[int, int]) -> None:
    check(tokens, [tokens, tokens + 1, tokens + 90], heads, widths)


@pytest.mark.parametrize("tokens", [1, 5, 40])
@pytest.mark.parametrize("window", [1, 4, 33, 500])
def test_window(tokens: int, window: int) -> None:
    check(tokens, [tokens, tokens + 3, tokens + 120], window=window)


def places(tokens: int, lengths: list[int]) -> Tensor:
    """Some positions within each length, ascending."""
    return torch.stack([torch.randperm(length)[:tokens].sort().values for length in lengths])


@pytest.mark.parametrize("tokens", [1, 2, 7, 40])
@pytest.mark.parametrize("window", [None, 1, 4, 33, 500])
def test_chosen_positions(tokens: int, window: int | None) -> None:
    lengths = [tokens, tokens + 3, tokens + 120]
    check(tokens, lengths, window=window, positions=places(tokens, lengths))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 9])
def test_low_precision(dtype: torch.dtype, tokens: int) -> None:
    check(tokens, [tokens + 30, tokens], dtype=dtype, rtol=4 * torch.finfo(dtype).eps)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("tokens", [2, 9, 130])
@pytest.mark.parametrize("kind", ["newest", "window", "chosen"])
def test_kernels_of_a_gpu(dtype: torch.dtype, width: int, tokens: int, kind: str) -> None:
    lengths = [tokens, tokens + 3, tokens + 120]
    at = places(tokens, lengths) if kind == "chosen" else None
    window = 40 if kind == "window" else None
    rtol = 4 * torch.finfo(dtype).eps if dtype == torch.bfloat16 else 1e-5
    check(tokens, lengths, (8, 2), (width, width), window, dtype, rtol, at, "cuda")


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12), st.lists(st.integers(0, 60), min_size=1, max_size=6), st.none() | st.integers(1, 70))
def test_unequal_lengths(tokens: int, past: list[int], window: int | None) -> None:
    with torch.inference_mode():
        check(tokens, [tokens + n for n in past], window=window)


@pytest.mark.parametrize("tokens", [1, 2, 7, 90])  # at these widths 90 queries are cheaper on expanded latents
@pytest.mark.parametrize("past", [[0], [0, 1, 90]])
@pytest.mark.parametrize("chosen", [False, True])
def test_latent_equals_expansion(tokens: int, past: list[int], chosen: bool) -> None:
    positions = places(tokens, [tokens + n for n in past]) if chosen else None
    heads, d_n, d_r, d_v, c = 3, 16, 8, 12, 20
    rows = scattered_rows([tokens + n for n in past])
    latent, rope = plane(rows, 1, c), plane(rows, 1, d_r)
    q_nope, q_rope = torch.randn(len(past), tokens, heads, d_n + d_r).split([d_n, d_r], dim=-1)
    w_k, w_v = torch.randn(heads, d_n, c), torch.randn(heads, d_v, c)
    out = attention.paged_latent_attention(q_nope, q_rope, latent, rope, rows, w_k, w_v, 0.05, positions)
    doubles = [x.double() for x in (q_nope, q_rope, latent, rope)]
    expected = naive.paged_latent_attention(*doubles, rows, w_k.double(), w_v.double(), 0.05, positions)
    assert_close("latent attention", out, expected, 5e-6)
