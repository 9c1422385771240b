import pytest
import torch

from holdover.ops.recurrence import gates
from tests.helpers import assert_close


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softplus_gate(dtype: torch.dtype) -> None:
    a = torch.tensor([[-60.0, -1.0, 0.5, 60.0]]).to(dtype)
    a_log, dt_bias = torch.tensor([0.0, 1.0, -3.0, 2.0]), torch.tensor([0.5, -0.25, 1.0, 0.0])
    expected = -a_log.double().exp() * torch.log1p((a.double() + dt_bias).exp())
    assert_close("log decay", gates.softplus_gate(a, a_log, dt_bias), expected, 1e-6)


def test_gates_per_channel() -> None:
    a, a_log, dt_bias = torch.randn(2, 3, 4, 5), torch.randn(4, 1), torch.randn(4, 5)
    assert gates.softplus_gate(a, a_log, dt_bias).shape == a.shape
    bounded = gates.bounded_gate(50 * a, a_log, dt_bias, -5.0)
    assert bounded.shape == a.shape
    assert bounded.min() >= -5.0
    assert bounded.max() <= 0.0
    expected = -5.0 * torch.sigmoid(a_log.double().exp() * (50 * a.double() + dt_bias))
    assert_close("log decay", bounded, expected, 1e-5)


def test_bound_must_be_negative() -> None:
    with pytest.raises(ValueError, match=r"lower_bound is 5\.0"):
        gates.bounded_gate(torch.zeros(1), torch.zeros(1), torch.zeros(1), 5.0)
