"""The fast recurrence and forward against their definitions, values and gradients."""

import pytest
import torch
from torch.nn import functional

from training.forward import Batch, Forward, HostForward
from training.model import build, decay_parameters, horizons
from training.recurrence import Convolution, chunked_gated_delta_rule, naive_gated_delta_rule


def assert_close(reference, found, ratio):
    for a, b in zip(reference, found, strict=True):
        assert ((a - b).norm() / a.norm().clamp(min=1e-12)).item() < ratio


@pytest.mark.parametrize("length", [64, 150])
@pytest.mark.parametrize("repeat", [False, True], ids=["random keys", "repeated keys"])
def test_chunks_equal_single_steps(length, repeat):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    q, k, v = draw(2, length, 2, 16), draw(2, length, 2, 16), draw(2, length, 4, 24)
    if repeat:
        k[:, 5:60] = k[:, 5:6]
    decay = -draw(2, length, 4).abs() * torch.tensor([1e-4, 1e-2, 0.3, 3.0], dtype=torch.float64)
    beta, weight = draw(2, length, 4).sigmoid(), draw(2, length, 4, 24)
    results = []
    for rule in (naive_gated_delta_rule, chunked_gated_delta_rule):
        inputs = [x.clone().requires_grad_() for x in (q, k, v, decay, beta)]
        out = rule(*inputs)
        results.append((out, *torch.autograd.grad((out * weight).sum(), inputs)))
    assert_close(*results, ratio=2e-6)  # q, k and the decays pass through fp32


def test_the_convolution_and_its_gradients():
    x, w = torch.randn(96, 6, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    change = torch.randn(96, 6, dtype=torch.float64)

    def host(x, w):
        rows = functional.pad(x.unflatten(0, (2, 48)).mT, (3, 0))
        return functional.silu(functional.conv1d(rows, w[:, None], groups=6)).mT.flatten(0, 1)

    results = []
    for call in (host, lambda x, w: Convolution.apply(x, w, 48)):
        inputs = [x.clone().requires_grad_(), w.clone().requires_grad_()]
        out = call(*inputs)
        results.append((out, *torch.autograd.grad((out * change).sum(), inputs)))
    assert_close(*results, ratio=1e-12)


def test_the_forward_equals_the_hosts():
    model = build("gdn", 300, "micro")
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
    ids = torch.randint(0, 300, (256,))
    batch = Batch(ids, ids.roll(-1), torch.rand(256) / 256, 128)
    results = []
    for forward in (HostForward(model), Forward(model)):
        loss, losses, _ = forward(batch)
        results.append((loss, losses, *torch.autograd.grad(loss, list(model.parameters()))))
    assert_close(*results, ratio=1e-4)


@pytest.mark.parametrize("architecture", ["gdn", "kda", "mamba2"])
def test_decays_start_spread(architecture):
    model = build(architecture, 300)
    spread = torch.cat(list(horizons(model).values()))
    assert len(decay_parameters(model)) == 6
    assert spread.max() > 30 * spread.min()
    assert spread.max() > 500


@pytest.mark.parametrize("architecture", ["kda", "mamba2"])
def test_other_architectures_train_through_the_host(architecture):
    model = build(architecture, 300, "micro")
    ids = torch.randint(0, 300, (128,))
    loss, losses, right = HostForward(model)(Batch(ids, ids.roll(-1), torch.full((128,), 1 / 128), 64))
    loss.backward()
    assert losses.shape == right.shape == (128,)
    assert all(parameter.grad is not None for _, pair in decay_parameters(model) for parameter in pair)
