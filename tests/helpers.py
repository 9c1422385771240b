"""The one comparison that numeric tests use."""

from __future__ import annotations

from torch import Tensor


def assert_close(name: str, got: Tensor, ref: Tensor, rtol: float) -> None:
    """Fail unless ``|got - ref| <= rtol |ref|`` in norm, and no element is off by more than 20 rtol of ref's rms.

    The second bound catches one wrong row in a large tensor, which the norm forgives.
    """
    assert got.shape == ref.shape, f"{name}: shape {tuple(got.shape)}, want {tuple(ref.shape)}"
    got, ref = got.double(), ref.double()
    assert got.isfinite().all(), f"{name}: {int((~got.isfinite()).sum())} of {got.numel()} elements are not finite"
    if ref.numel() == 0:
        return
    rms = ref.square().mean().sqrt().clamp_min(1e-30)
    relative = float((got - ref).norm() / ref.norm().clamp_min(1e-30))
    largest = float((got - ref).abs().max() / rms)
    assert relative <= rtol, f"{name}: relative error {relative:.2e}, want at most {rtol:.0e}"
    assert largest <= 20 * rtol, f"{name}: largest error {largest:.2e} of the rms, want at most {20 * rtol:.0e}"
