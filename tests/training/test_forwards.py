"""The training forwards against Transformers' own, losses and every gradient."""

import pytest
import torch

from tests.training.host import assert_close, host_forward, random_batch
from training.forwards import FORWARDS
from training.forwards.common import attend
from training.model import build


def moved(architecture):
    """A micro model whose norms, biases and skips are no longer what they start as."""
    model = build(architecture, 300, "micro")
    if architecture == "mamba2":
        c = model.config
        c.embedding_multiplier, c.residual_multiplier, c.logits_scaling = 3.0, 0.4, 2.0
        model.model.embedding_multiplier = 3.0
        for layer in model.model.layers:
            layer.residual_multiplier = 0.4
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 and "dt_bias" not in name and "A_log" not in name:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.mark.parametrize(("tokens", "length"), [(192, 64), (512, 256)])
@pytest.mark.parametrize("architecture", FORWARDS)
def test_the_forward_equals_the_hosts(architecture, tokens, length):
    torch.manual_seed(0)
    model, batch = moved(architecture), random_batch(tokens, length)
    results = []
    for forward in (lambda b: host_forward(model, b), FORWARDS[architecture](model)):
        loss, losses, _ = forward(batch)
        results.append((loss, losses, *torch.autograd.grad(loss, list(model.parameters()))))
    assert_close(*results, ratio=1e-4)


@pytest.mark.parametrize("architecture", FORWARDS)
def test_recurrent_layers_see_past_the_window(architecture):
    torch.manual_seed(0)
    model, batch = build(architecture, 300, "micro"), random_batch(256, 128, window=64)
    forward = FORWARDS[architecture](model)
    whole, windowed = forward(batch._replace(window=128))[1].view(2, 2, 64), forward(batch)[1].view(2, 2, 64)
    changed = forward(batch._replace(ids=batch.ids.roll(64)))[1]
    assert torch.allclose(whole[:, 0], windowed[:, 0], atol=1e-5)
    assert not torch.allclose(whole[:, 1], windowed[:, 1], atol=1e-5)
    assert changed.isfinite().all()


def test_windowed_attention_is_masked_attention():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 96, 2, 8)
    place = torch.arange(96)
    seen = (place[:, None] >= place) & (place[:, None] // 32 == place // 32)
    scores = torch.einsum("ihd,jhd->hij", q, k) * 0.3
    expected = torch.einsum("hij,jhd->ihd", scores.masked_fill(~seen, float("-inf")).softmax(-1), v)
    assert torch.allclose(attend(q, k, v, 32, 0.3), expected, atol=1e-5)
