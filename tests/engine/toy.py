"""A model of integers, exact and a hundred times faster than a network, for tests of scheduling and ownership.

Its next token depends on everything that the engine must carry: a recurrent state that orders all tokens, the conv
window, and the rows and order of all attention entries. One wrong bit anywhere gives other logits, and NaN an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from holdover.arch.layout import AttentionLayer, KVLayout, ModelLayout, RecurrentLayer, StateLayout
from holdover.engine.step import Step

VOCAB = 8
WINDOW = 3
# the state stays an integer that fp32 holds exactly
_FACTOR, _PRIME = 37, 9973
_TAPS = (1.0, 16.0, 256.0)
_TABLE = 4 * torch.randn(_PRIME, VOCAB, generator=torch.Generator().manual_seed(0))

LAYOUT = ModelLayout(
    architecture="toy",
    state=StateLayout(
        (RecurrentLayer(0, "gdn", 1, 1, 1, 1, "head", conv_channels=1, conv_width=WINDOW),), conv_dtype="float32"
    ),
    kv=KVLayout((AttentionLayer(1, "heads", 1, 1, 1, 1),), dtype="float32"),
    num_layers=2,
    vocab_size=VOCAB,
    max_context=512,
    dtype="float32",
)


class _Fold:
    """``state <- (37 state + token + 1) mod 9973``."""

    @staticmethod
    def sequence(pool: torch.Tensor, slots: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        state, out = pool[slots, 0, 0, 0], []
        for token in x.unbind(1):
            state = (_FACTOR * state + token + 1) % _PRIME
            out.append(state)
        pool[slots, 0, 0, 0] = state
        return torch.stack(out, dim=1)

    @staticmethod
    def step(pool: torch.Tensor, slots: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return _Fold.sequence(pool, slots, x.unsqueeze(1)).squeeze(1)


class ToyHost:
    """The model on the engine's pools."""

    layout = LAYOUT
    rope_parameters = None
    device = torch.device("cpu")
    # whether reading poison is an error of its own
    check = True

    def __init__(self) -> None:
        self.forwards = 0
        # rows read by attention in each forward
        self.rows_read: list[int] = []

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, step: Step, logits: int | None) -> torch.Tensor:
        self.forwards += 1
        x = tokens.float()
        window = step.convolve(0, x.unsqueeze(-1), torch.tensor([_TAPS]), None, None).squeeze(-1)
        state = step.recur(0, _Fold, {}, x=x)
        step.update((x + 1)[:, None, :, None], positions.float()[:, None, :, None] + 1, 1)
        mixed = torch.stack([self._attend(step, rows, tokens.shape[1]) for rows in step.rows])
        self.rows_read.append(sum(len(rows) for rows in step.rows))
        mix = state + 7 * window + mixed
        assert mix.isfinite().all() or not self.check, "poison was read"
        out = _TABLE[mix.nan_to_num().long() % _PRIME]
        return out if logits is None else out[:, -logits:]

    def _attend(self, step: Step, rows: torch.Tensor, count: int) -> torch.Tensor:
        keys, values = (plane[rows, 0, 0] for plane in step.kv_pool.planes(1))
        order = torch.arange(1, len(rows) + 1)
        assert torch.equal(values, order.float()) or not self.check, "attention reads the rows of other positions"
        return (keys * order).cumsum(0)[-count:]


def reference(tokens: Sequence[int]) -> torch.Tensor:
    """Log probabilities after each of ``tokens``, from their definition."""
    state, mixed, rows = 0, 0, []
    for position, token in enumerate(tokens):
        state = (_FACTOR * state + token + 1) % _PRIME
        mixed += (token + 1) * (position + 1)
        recent = [0, 0, *tokens[: position + 1]][-WINDOW:]
        window = sum(int(tap) * past for tap, past in zip(_TAPS, recent, strict=True))
        rows.append((state + 7 * window + mixed) % _PRIME)
    return _TABLE[rows].log_softmax(-1)
