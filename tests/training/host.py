"""The forward that defines the others: Transformers' own, on a training batch."""

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from training.forwards import Batch


def host_forward(model: PreTrainedModel, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """As ``training.forwards.Forward``, for batches whose attention has no window."""
    logits = model(input_ids=batch.ids.view(-1, batch.length), use_cache=False).logits.flatten(0, 1)
    losses = functional.cross_entropy(logits, batch.targets, reduction="none")
    return (losses * batch.weights).sum(), losses.detach(), logits.argmax(-1) == batch.targets


def random_batch(tokens: int, length: int, vocabulary: int = 300, window: int | None = None) -> Batch:
    ids = torch.randint(0, vocabulary, (tokens,))
    return Batch(ids, ids.roll(-1), torch.rand(tokens) / tokens, length, window or length)


def assert_close(reference: tuple[Tensor, ...], found: tuple[Tensor, ...], ratio: float) -> None:
    """‖difference‖ / ‖reference‖ of each pair."""
    for at, (a, b) in enumerate(zip(reference, found, strict=True)):
        error = ((a - b).norm() / a.norm().clamp(min=1e-12)).item()
        assert error < ratio, f"tensor {at} of shape {tuple(a.shape)}: {error:.1e}"
