"""What a chunk does to a recurrent state that enters it: an affine map ``S -> T S + U`` (LinearKV, Eq. 5).

T is the product of the tokens' transitions, the last one leftmost, and U the state that the chunk reaches from an empty
start. A transition has the shape of what it is: a factor per head ``[H]`` (Mamba-2), one per key channel ``[H, d_k]``
(RWKV-6), or a matrix ``[H, d_k, d_k]`` (GDN, KDA).

For the delta rule both come from one pass of the chunk kernel. It advances a state column by column, and the columns of
T are what becomes of unit vectors that nothing is written to: from the state ``[I | 0]``, with the values ``[0 | v]``,
comes ``[T | U]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from holdover.arch.layout import Family, RecurrentLayer
from holdover.ops.recurrence.gdn import torch as gdn
from holdover.ops.recurrence.kda import torch as kda
from holdover.ops.recurrence.mamba2 import torch as mamba2
from holdover.ops.recurrence.rwkv6 import torch as rwkv6

# a recurrence's inputs under the names of its `sequence`, without a batch: ``[T, ...]``, parameters as they are
Inputs = Mapping[str, Tensor]
_PARAMETERS = frozenset({"a", "d", "bonus"})


class Affine(NamedTuple):
    """The map ``S -> T S + U`` of some tokens in one layer.

    Attributes:
        transition: T, fp32 ``[H]``, ``[H, d_k]`` or ``[H, d_k, d_k]``.
        offset: U, fp32 ``[H, d_k, d_v]``.
    """

    transition: Tensor
    offset: Tensor

    def apply(self, state: Tensor) -> Tensor:
        """What becomes of ``state [..., H, d_k, d_v]``."""
        return carry(self.transition, state) + self.offset

    def after(self, earlier: Affine) -> Affine:
        """This map after an earlier one, as one map."""
        return Affine(product(self.transition, earlier.transition), self.apply(earlier.offset))


def affine(layer: RecurrentLayer, inputs: Inputs) -> Affine:
    """The map of a layer's tokens, from what they gave to its recurrence.

    Args:
        layer: the layer.
        inputs: arguments of the family's ``sequence``, by name and without a batch; T may be 0. Queries are not read.

    Returns:
        The map, on the device of the inputs.
    """
    return _FAMILIES[layer.family](layer, inputs)


def carry(transition: Tensor, state: Tensor) -> Tensor:
    """``T S`` for a state ``[..., H, d_k, d_v]``."""
    if transition.dim() == 3:
        return transition @ state
    return transition.view(*transition.shape, *[1] * (3 - transition.dim())) * state


def product(later: Tensor, earlier: Tensor) -> Tensor:
    """``T_later T_earlier``: the transition of tokens that follow each other."""
    return later @ earlier if later.dim() == 3 else later * earlier


def tokens_of(inputs: Inputs, tokens: slice) -> dict[str, Tensor]:
    """The inputs of some tokens."""
    return {name: x if name in _PARAMETERS else x[tokens] for name, x in inputs.items()}


def transition_shape(layer: RecurrentLayer) -> tuple[int, ...]:
    """Shape of a layer's transitions."""
    rank = {"mamba2": 1, "rwkv6": 2, "gdn": 3, "kda": 3}[layer.family]
    return (layer.heads, layer.d_k, layer.d_k)[:rank]


def transition_numel(layer: RecurrentLayer) -> int:
    """Elements of a layer's transition."""
    return prod(transition_shape(layer))


def _delta(op: ModuleType, layer: RecurrentLayer, inputs: Inputs) -> Affine:
    k, v = inputs["k"], inputs["v"]
    state = torch.zeros(1, layer.heads, layer.d_k, layer.d_k + layer.d_v, device=v.device)
    state[..., : layer.d_k] = torch.eye(layer.d_k, device=v.device)
    values = torch.cat([v.new_zeros(*v.shape[:-1], layer.d_k), v], dim=-1)
    # what is read does not matter
    _run(op, state, {**inputs, "q": k, "v": values})
    return Affine(state[0, ..., : layer.d_k].contiguous(), state[0, ..., layer.d_k :].contiguous())


def _decayed(op: ModuleType, log_decay: Tensor, layer: RecurrentLayer, inputs: Inputs) -> Affine:
    """For recurrences that only decay: ``log_decay [T, H]`` or ``[T, H, d_k]``."""
    state = torch.zeros(1, layer.heads, layer.d_k, layer.d_v, device=log_decay.device)
    _run(op, state, inputs)
    # over many tokens the sum loses digits that its exponential would multiply
    return Affine(log_decay.double().sum(0).exp().float(), state[0])


def _mamba2(layer: RecurrentLayer, inputs: Inputs) -> Affine:
    return _decayed(mamba2, inputs["dt"].double() * inputs["a"].double(), layer, {**inputs, "c": inputs["b"]})


def _rwkv6(layer: RecurrentLayer, inputs: Inputs) -> Affine:
    return _decayed(rwkv6, inputs["log_decay"], layer, {**inputs, "r": inputs["k"]})


def _run(op: ModuleType, state: Tensor, inputs: Inputs) -> None:
    """Advance ``state [1, ...]`` in place over all tokens; their outputs are dropped."""
    timed = {name: x if name in _PARAMETERS else x.unsqueeze(0) for name, x in inputs.items()}
    if next(x for name, x in timed.items() if name not in _PARAMETERS).shape[1]:
        op.sequence(state, torch.zeros(1, dtype=torch.int64, device=state.device), **timed)


_FAMILIES: dict[Family, Callable[[RecurrentLayer, Inputs], Affine]] = {
    "gdn": lambda layer, inputs: _delta(gdn, layer, inputs),
    "kda": lambda layer, inputs: _delta(kda, layer, inputs),
    "mamba2": _mamba2,
    "rwkv6": _rwkv6,
}
