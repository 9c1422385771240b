"""The fast recurrences against their definitions, values and gradients."""

import pytest
import torch
from torch.nn import functional

from tests.training.host import assert_close
from training.forwards import RULES
from training.model import build, decay_parameters, horizons
from training.recurrence import ChannelProducts, Convolution


def inputs(architecture, length, repeat):
    """Random inputs of a rule, fp64: decays from hardly any to e^-100 a token, keys that repeat if asked."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    rates = torch.tensor([1e-4, 1e-2, 3.0, 100.0], dtype=torch.float64)
    if architecture == "mamba2":
        x, step = draw(2, length, 4, 24), draw(2, length, 4).exp()
        return [x, draw(2, length, 2, 16), draw(2, length, 2, 16), step, -rates]
    channels = architecture == "kda"
    heads = 4 if channels else 2
    q, k, v = draw(2, length, heads, 16), draw(2, length, heads, 16), draw(2, length, 4, 24)
    if repeat:
        k[:, 5:60] = k[:, 5:6]
    decay = -draw(2, length, 4, 16).abs() * rates.repeat(4) if channels else -draw(2, length, 4).abs() * rates
    return [q, k, v, decay, draw(2, length, 4).sigmoid()]


@pytest.mark.parametrize("architecture", RULES)
@pytest.mark.parametrize("length", [64, 150])
@pytest.mark.parametrize("repeat", [False, True], ids=["random keys", "repeated keys"])
def test_chunks_equal_single_steps(architecture, length, repeat):
    given = inputs(architecture, length, repeat)
    results = []
    for rule in RULES[architecture]:
        some = [x.clone().requires_grad_() for x in given]
        out = rule(*some)
        weight = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        results.append((out, *torch.autograd.grad((out * weight).sum(), some)))
    assert_close(*results, ratio=1e-5)  # queries, keys and decays pass through fp32


def test_channel_products_and_their_gradients():
    torch.manual_seed(0)
    q, k, g = torch.randn(3, 1, 2, 64, 8, dtype=torch.float64)
    g = -(g.abs() * torch.logspace(-3, 2, 8, dtype=torch.float64)).cumsum(2)
    q, k, g = (x.requires_grad_() for x in (q, k, g))
    weights = torch.randn(2, 1, 2, 64, 64, dtype=torch.float64)
    kept = k[:, :, None] * ChannelProducts.decays(g)
    plain = (q[:, :, :, None] * kept).sum(-1), (k[:, :, :, None] * kept).sum(-1).tril(-1)
    results = []
    for pair in (plain, ChannelProducts.apply(q, k, g)):
        loss = sum((part * weight).sum() for part, weight in zip(pair, weights, strict=True))
        results.append((*pair, *torch.autograd.grad(loss, (q, k, g))))
    assert_close(*results, ratio=1e-12)


@pytest.mark.parametrize("biased", [False, True])
def test_the_convolution_and_its_gradients(biased):
    torch.manual_seed(0)
    given = [torch.randn(*shape, dtype=torch.float64) for shape in ((96, 6), (6, 4), (6,))][: 3 if biased else 2]
    change = torch.randn(96, 6, dtype=torch.float64)

    def host(x, w, bias=None):
        rows = functional.pad(x.unflatten(0, (2, 48)).mT, (3, 0))
        return functional.silu(functional.conv1d(rows, w[:, None], bias, groups=6)).mT.flatten(0, 1)

    results = []
    for call in (host, lambda x, w, bias=None: Convolution.apply(x, w, bias, 48)):
        some = [x.clone().requires_grad_() for x in given]
        out = call(*some)
        results.append((out, *torch.autograd.grad((out * change).sum(), some)))
    assert_close(*results, ratio=1e-12)


@pytest.mark.parametrize("architecture", RULES)
def test_decays_start_spread(architecture):
    model = build(architecture, 300)
    spread = torch.cat(list(horizons(model).values()))
    assert len(decay_parameters(model)) == 7
    assert spread.quantile(0.05) < 30
    assert spread.max() > 3000
