"""Products of fp32 matrices by tensor cores, which take the leading 11 bits of a significand."""

from __future__ import annotations

import triton.language as tl

from holdover.ops.jit import jit

# the sign, the exponent and the 10 stored bits of a significand that tf32 keeps
KEPT_BITS = tl.constexpr(-(1 << 13))


@jit
def product(a: tl.tensor, b: tl.tensor, acc: tl.tensor) -> tl.tensor:
    """``acc + a @ b`` with fp32's accuracy, up to the last bit or two.

    fp32 operands are cut in two, and the product of both remainders is left out; bf16 and fp16 fit tf32 as they are.
    """
    high_a, low_a = _halves(a)
    high_b, low_b = _halves(b)
    if a.dtype == tl.float32:
        acc = tl.dot(low_a, high_b, acc, input_precision="tf32")
    if b.dtype == tl.float32:
        acc = tl.dot(high_a, low_b, acc, input_precision="tf32")
    return tl.dot(high_a, high_b, acc, input_precision="tf32")


@jit
def _halves(x: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    whole = x.to(tl.float32)
    high = whole
    if x.dtype == tl.float32:
        high = (x.to(tl.int32, bitcast=True) & KEPT_BITS).to(tl.float32, bitcast=True)
    return high, whole - high
