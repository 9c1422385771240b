"""Triton's dense convolution against the definition: on the GPU where there is one, in its interpreter elsewhere."""

from __future__ import annotations

import pytest
import torch

from holdover.errors import ConfigError
from holdover.ops.conv import naive
from tests.helpers import assert_close
from tests.interpreter import require_triton

require_triton()

from holdover.ops.conv import dense_triton  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# one block of channels and a piece of another; tokens beyond one program's
CHANNELS, MANY = dense_triton.BLOCK + 3, dense_triton.ROWS + 5


def painted_pool(width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Slots of two layers, so that a slot's rows are not next to the next slot's; slot 0 is NaN."""
    layers = torch.full((5, 2, width - 1, CHANNELS), float("nan"), dtype=dtype, device=DEVICE)
    pool = layers[:, 1]
    pool[1:] = torch.randn(pool[1:].shape, device=DEVICE).to(dtype)
    return pool


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, MANY])
@pytest.mark.parametrize(("slots", "bias", "activation"), [([3, 1], True, "silu"), ([2], False, None)])
def test_sequence_equals_definition(
    dtype: torch.dtype, width: int, tokens: int, slots: list[int], bias: bool, activation: str | None
) -> None:
    pool = painted_pool(width, dtype)
    before = pool.clone()
    # channels apart and channels side by side
    x = torch.randn(len(slots), CHANNELS, tokens, device=DEVICE).to(dtype).mT
    weight = torch.randn(CHANNELS, width, device=DEVICE).to(dtype)
    offset = torch.randn(CHANNELS, device=DEVICE).to(dtype) if bias else None
    out = dense_triton.sequence(pool, torch.tensor(slots, device=DEVICE), x, weight, offset, activation)
    expected, history = naive.convolution(
        before[slots].double(), x.double(), weight.double(), None if offset is None else offset.double(), activation
    )
    assert out.dtype == dtype
    assert_close("outputs", out, expected, 1e-6 if dtype is torch.float32 else torch.finfo(dtype).eps)
    assert torch.equal(pool[slots], history.to(dtype))
    others = [slot for slot in range(5) if slot not in slots]
    assert torch.equal(pool[others].nan_to_num(7.0), before[others].nan_to_num(7.0))


def test_steps_equal_a_sequence() -> None:
    whole = painted_pool(4)
    parts = whole.clone()
    x, weight = torch.randn(2, 5, CHANNELS, device=DEVICE), torch.randn(CHANNELS, 4, device=DEVICE)
    slots = torch.tensor([4, 2], device=DEVICE)
    expected = dense_triton.sequence(whole, slots, x, weight, activation="silu")
    steps = [dense_triton.step(parts, slots, x[:, t], weight, activation="silu") for t in range(5)]
    assert_close("outputs", torch.stack(steps, dim=1), expected, 1e-6)
    assert torch.equal(parts[1:], whole[1:])


def test_what_it_cannot_run_is_refused() -> None:
    pool, x, weight = painted_pool(4), torch.zeros(1, 1, CHANNELS), torch.zeros(CHANNELS, 4)
    with pytest.raises(ValueError, match="gelu"):
        dense_triton.sequence(pool, torch.tensor([1]), x, weight, None, "gelu")
    with pytest.raises(ConfigError, match="contiguous"):
        dense_triton.sequence(pool.mT.contiguous().mT, torch.tensor([1]), x, weight)


@pytest.mark.gpu
def test_a_long_prompt_on_a_gpu() -> None:
    # more elements than 32 bits count
    tokens, channels = (1 << 31) // 8192 + 100, 8192
    pool = torch.randn(2, 3, channels, device=DEVICE).bfloat16()
    before = pool.clone()
    x = torch.randn(1, tokens, channels, device=DEVICE, dtype=torch.bfloat16)
    weight = torch.randn(channels, 4, device=DEVICE).bfloat16()
    out = dense_triton.sequence(pool, torch.tensor([1], device=DEVICE), x, weight, None, "silu")
    for part in (slice(0, 8), slice(tokens - 8, tokens)):
        first = max(0, part.start - 3)
        history = before[1:] if first == 0 else x[:, first : first + 3]
        given = x[:, first if first == 0 else first + 3 : part.stop]
        expected, _ = naive.convolution(history.double(), given.double(), weight.double(), None, "silu")
        assert_close("outputs", out[:, part], expected[:, -(part.stop - part.start) :], torch.finfo(x.dtype).eps)
    assert torch.equal(pool[1], x[0, -3:])
