import pytest
import torch
import torch.nn.functional as F

from holdover.ops.norm import gated_rms_norm
from tests.helpers import assert_close


@pytest.mark.parametrize("activation", [F.silu, torch.sigmoid])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_gated_norm_is_its_definition(activation, dtype, tolerance):
    x, gate, weight = (torch.randn(*shape).to(dtype) for shape in [(2, 5, 3, 16), (2, 5, 3, 16), (16,)])
    wide = x.double()
    ref = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double() * activation(gate.double())
    out = gated_rms_norm(x, gate, weight, 1e-5, activation)
    assert out.dtype is dtype
    assert_close("gated norm", out, ref, tolerance)
