"""Triton's attention of chosen tokens against the definition: on the GPU, or in the interpreter where there is none."""

from __future__ import annotations

import pytest
import torch

from holdover.ops.attention import naive
from tests.helpers import assert_close
from tests.interpreter import require_triton

require_triton()

from holdover.ops.attention.chosen import attend_chosen  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def check(
    tokens: int, length: int, heads: tuple[int, int], widths: tuple[int, int], dtype: torch.dtype, rtol: float
) -> None:
    """Queries at some positions of a sequence in any order, some of them twice; strided inputs."""
    positions = torch.randint(length, (tokens,))
    positions[0] = length - 1
    positions = positions.to(DEVICE)
    q = torch.randn(heads[0], tokens, widths[0], device=DEVICE).to(dtype).transpose(0, 1)
    keys, values = (torch.randn(length, 2, heads[1], width, device=DEVICE).to(dtype)[:, 1] for width in widths)
    out = attend_chosen(q, keys, values, positions, 0.3)
    rows = [torch.arange(length, device=DEVICE)]
    expected = naive.paged_attention(
        q.unsqueeze(0).double(), keys.double(), values.double(), rows, 0.3, None, positions.unsqueeze(0)
    )
    assert out.dtype == dtype
    assert_close("attention", out, expected[0], rtol)


@pytest.mark.parametrize("tokens", [1, 17, 40])
@pytest.mark.parametrize("past", [0, 30, 70])
@pytest.mark.parametrize(("heads", "widths"), [((4, 4), (16, 16)), ((6, 2), (24, 12))])
def test_equals_definition(tokens: int, past: int, heads: tuple[int, int], widths: tuple[int, int]) -> None:
    check(tokens, tokens + past, heads, widths, torch.float32, 2e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("widths", [(64, 64), (128, 128), (192, 128), (256, 256)])
@pytest.mark.parametrize(("tokens", "length"), [(1, 1), (130, 700), (1000, 3000)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_on_a_gpu(tokens: int, length: int, widths: tuple[int, int], dtype: torch.dtype) -> None:
    check(tokens, length, (8, 2), widths, dtype, 4 * torch.finfo(dtype).eps)
