from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdover.ops.conv import naive
from holdover.ops.conv import torch as torch_form
from holdover.ops.native import convolution as native_form
from tests.helpers import assert_close

# one more than four of the widest vectors
CHANNELS = 65
SLOTS = torch.tensor([3, 1])

each_form = pytest.mark.parametrize("conv", [torch_form, native_form], ids=["torch", "native"])


def painted_pool(width: int) -> torch.Tensor:
    layers = torch.full((5, 2, width - 1, CHANNELS), float("nan"))
    pool = layers[:, 1]
    return pool.copy_(torch.arange(1.0, 6.0)[:, None, None].expand_as(pool))


@each_form
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 30])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["silu", None])
@pytest.mark.parametrize("slots", [[3, 1], [1, 2], [3]])
def test_sequence_equals_definition(
    conv: ModuleType, width: int, tokens: int, bias: bool, activation: str | None, slots: list[int]
) -> None:
    pool, before = painted_pool(width), painted_pool(width)
    pool[0] = float("nan")
    x, weight = torch.randn(len(slots), CHANNELS, tokens).mT, torch.randn(CHANNELS, width)
    offset = torch.randn(CHANNELS) if bias else None
    out = conv.sequence(pool, torch.tensor(slots), x, weight, offset, activation)
    expected, history = naive.convolution(
        before[slots].double(), x.double(), weight.double(), None if offset is None else offset.double(), activation
    )
    assert_close("outputs", out, expected, 1e-6)
    assert torch.equal(pool[slots], history.float())
    others = [slot for slot in (1, 2, 3, 4) if slot not in slots]
    assert torch.equal(pool[others], before[others])
    assert pool[0].isnan().all()


@each_form
@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_repeated_short_calls_equal_one(conv: ModuleType, lengths: list[int]) -> None:
    with torch.inference_mode():
        whole, parts = painted_pool(4), painted_pool(4)
        x, weight = torch.randn(2, sum(lengths), CHANNELS), torch.randn(CHANNELS, 4)
        expected = conv.sequence(whole, SLOTS, x, weight, activation="silu")
        outputs = []
        for piece in x.split(lengths, dim=1):
            if piece.shape[1] == 1:
                outputs.append(conv.step(parts, SLOTS, piece[:, 0], weight, activation="silu").unsqueeze(1))
            else:
                outputs.append(conv.sequence(parts, SLOTS, piece, weight, activation="silu"))
    assert_close("outputs", torch.cat(outputs, dim=1), expected, 1e-6)
    assert torch.equal(parts, whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 6])
def test_low_precision(dtype: torch.dtype, tokens: int) -> None:
    pool = painted_pool(4).to(dtype)
    x, weight = torch.randn(2, tokens, CHANNELS).to(dtype), torch.randn(CHANNELS, 4).to(dtype)
    expected, history = naive.convolution(pool[SLOTS].double(), x.double(), weight.double(), None, "silu")
    out = torch_form.sequence(pool, SLOTS, x, weight, None, "silu")
    assert out.dtype == dtype
    assert_close("outputs", out, expected, torch.finfo(dtype).eps)
    assert torch.equal(pool[SLOTS], history.to(dtype))


@each_form
def test_unknown_activation_is_refused(conv: ModuleType) -> None:
    with pytest.raises(ValueError, match="gelu"):
        conv.step(painted_pool(4), SLOTS, torch.zeros(2, CHANNELS), torch.zeros(CHANNELS, 4), None, "gelu")
