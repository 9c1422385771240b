"""Training's Triton kernels, compiled or interpreted, against their torch forms."""

import pytest
import torch
from torch.nn import functional

from tests.interpreter import require_triton
from tests.training.host import assert_close

require_triton()

from training import channels, kernels  # noqa: E402
from training.recurrence import ChannelProducts, Convolution, UnitLowerInverse, _scan  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EXACT = 1e-5 if DEVICE == "cpu" else 5e-3  # tf32 products on a GPU


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def gradients(apply, given, changes):
    """Values and gradients of the torch form, on the CPU in fp64."""
    some = [x.double().requires_grad_() for x in given]
    out = apply(*some)
    out = out if isinstance(out, tuple) else (out,)
    loss = sum((part * change.double()).sum() for part, change in zip(out, changes, strict=True))
    return [part.float() for part in (*out, *torch.autograd.grad(loss, some))]


def on_device(tensors):
    return [x.to(DEVICE) for x in tensors]


def test_channel_products():
    q, k, g = torch.randn(3, 1, 2, 64, 16)
    # from hardly any decay to one that underflows within a few tokens
    g = -(g.abs() * torch.logspace(-3, 2, 16)).cumsum(2)
    changes = torch.randn(2, 1, 2, 64, 64)
    found = channels.products(*on_device((q, k, g)))
    back = channels.products_backward(*on_device((q, k, g, *changes)))
    assert_close(gradients(ChannelProducts.apply, (q, k, g), changes), [x.cpu() for x in (*found, *back)], EXACT)


@pytest.mark.parametrize("channel", [False, True], ids=["decay a head", "decay a channel"])
@pytest.mark.parametrize("removes", [False, True], ids=["adds", "adds and removes"])
def test_the_scan(channel, removes):
    chunks, heads, dim, value = 3, 2, 16, 32
    decay = torch.rand(2 * chunks, heads, dim if channel else 1)
    both = 0.3 * torch.randn(2 * chunks, heads, dim, value + (dim if removes else 0))
    change = torch.randn(2 * chunks, heads, dim, value)
    plain = [_scan(decay, both, value, chunks, grad) for grad in (None, change)]
    found = kernels.scan_forward(*on_device((decay, both)), value, chunks)
    back = kernels.scan_backward(*on_device((decay, both, change)), value, chunks)
    assert_close(plain, [found.cpu(), back.cpu()], EXACT)


@pytest.mark.parametrize("biased", [False, True])
def test_the_convolution(biased):
    given = [torch.randn(128, 64), torch.randn(64, 4), torch.randn(64)][: 3 if biased else 2]
    change = torch.randn(128, 64)

    def plain(x, w, bias=None):
        return Convolution.apply(x, w, bias, 64)

    placed = on_device((*given, None, change)[: len(given)]) + ([] if biased else [None])
    found = kernels.convolve(*placed, 64)
    back = kernels.convolve_backward(*placed, change.to(DEVICE), 64)
    assert back[2] is not None or not biased
    out = [x.cpu() for x in (found, *back) if x is not None]
    assert_close(gradients(plain, given, [change]), out, EXACT)


def test_the_inverse():
    lower = functional.normalize(torch.randn(2, 2, 64, 8), dim=-1)
    lower = (lower @ lower.mT).tril(-1)
    found = kernels.unit_lower_inverse(lower.to(DEVICE)).cpu()
    assert_close([UnitLowerInverse.apply(lower.double()).float()], [found], EXACT)
