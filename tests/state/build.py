"""Tiny state layouts, and a model of small integers that advances slots exactly.

Each layer's temporal state is one number that depends on every token seen, on the layer and on a salt; its conv state
is the last inputs. A state of other tokens, of another depth, layer or namespace therefore never looks right.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from holdover.arch.layout import RecurrentLayer, StateLayout
from holdover.state import SlotPool

# the tensors are tiny: threads would only cost
torch.set_num_threads(1)

# 37 * 65521 is exact in fp32
_FACTOR, _MODULUS = 37, 65521


def layer(index: int, heads: int = 2, d_k: int = 2, d_v: int = 3, channels: int = 4, width: int = 4) -> RecurrentLayer:
    return RecurrentLayer(index, "gdn", heads, heads, d_k, d_v, "head", channels, width)


ONE = StateLayout((layer(0),), conv_dtype="float32")
UNIFORM = StateLayout((layer(0), layer(1), layer(3)), conv_dtype="float32")
MIXED = StateLayout((layer(0), layer(2, 1, 4, 2, 6, 3), layer(3), layer(5, 3, 1, 1, 2, 2)), conv_dtype="float32")
SAME_SIZE = StateLayout((layer(0, d_k=2, d_v=3), layer(1, d_k=3, d_v=2)), conv_dtype="float32")
NO_HISTORY = StateLayout((layer(0), layer(1, width=1)), conv_dtype="float32")
LAYOUTS = {"one": ONE, "uniform": UNIFORM, "mixed": MIXED, "same-size": SAME_SIZE, "no-history": NO_HISTORY}


def number(tokens: Sequence[int], layer: int, salt: int = 0) -> int:
    """What the model makes of ``tokens`` in one layer."""
    value = 0
    for token in tokens:
        value = (value * _FACTOR + token + 1 + layer + salt) % _MODULUS
    return value


def advance(pool: SlotPool, slot: int, tokens: Sequence[int], salt: int = 0, skip: Sequence[int] = ()) -> None:
    """Run ``tokens`` through every layer of a slot but those to ``skip``."""
    chains = pool.begin([slot])
    written = {layer.index for layer in pool.layout.layers} - set(skip)
    for index in written:
        for token in tokens:
            pool.temporal(index)[slot].mul_(_FACTOR).add_(token + 1 + index + salt).remainder_(_MODULUS)
            history = pool.conv(index)[slot]
            if len(history):
                history.copy_(torch.cat([history[1:], torch.full_like(history[:1], token + 1 + index + salt)]))
    pool.commit([slot], chains, [tokens], written)


def assert_state_of(pool: SlotPool, slot: int, tokens: Sequence[int], salt: int = 0) -> None:
    """Fail unless every byte of a slot is the state after exactly ``tokens``."""
    assert pool.depth(slot) == len(tokens)
    for spec in pool.layout.layers:
        temporal, conv = pool.temporal(spec.index)[slot], pool.conv(spec.index)[slot]
        assert temporal.eq(number(tokens, spec.index, salt)).all(), f"layer {spec.index}: state is not of {tokens}"
        inputs = [0] * (spec.conv_width - 1) + [token + 1 + spec.index + salt for token in tokens]
        history = torch.tensor(inputs[len(tokens) :], dtype=conv.dtype)[:, None]
        assert conv.eq(history).all(), f"layer {spec.index}: conv state is not of {tokens}"


def bytes_of(pool: SlotPool, slot: int) -> list[torch.Tensor]:
    """A copy of every tensor of one slot."""
    return [tensor.clone() for tensor in pool.tensors_of(slot)]


def same_bytes(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> bool:
    """Bit equality, NaN included."""
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(ours, theirs, strict=True))
