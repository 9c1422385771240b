"""How far a constructed state is from the true one, layer by layer (LinearKV, Fig. 3).

The mean is not reported: in a deep stack it looks fine while the last recurrent layer is far off.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from holdover.state import SlotPool


@dataclass(frozen=True)
class StateErrors:
    """Relative errors of temporal states.

    Attributes:
        layers: by the layer's index, in stack order: ``|S - S*| / |S*|`` over the whole state.
    """

    layers: dict[int, float]

    @property
    def worst(self) -> tuple[int, float]:
        """The layer that is farthest off, and its error; one that is not a number is the farthest."""
        return max(self.layers.items(), key=lambda item: (item[1] != item[1], item[1]))


def state_errors(pool: SlotPool, slot: int, true: int) -> StateErrors:
    """Compare a slot's temporal state with that of another, which is the true one. Folds both logs first.

    A true state of zeros is matched by zeros only: the error is then 0, or infinite.
    """
    pool.settle([slot, true])
    layers = {}
    for layer in pool.layout.layers:
        state, wanted = (pool.temporal(layer.index)[s] for s in (slot, true))
        layers[layer.index] = relative_error(state, wanted)
    return StateErrors(layers)


def relative_error(got: Tensor, wanted: Tensor) -> float:
    """``|got - wanted| / |wanted|`` of two tensors of one shape; of a wanted zero, 0 or infinite."""
    distance, norm = float((got.double() - wanted.double()).norm()), float(wanted.double().norm())
    return distance / norm if norm else (distance and float("inf"))
