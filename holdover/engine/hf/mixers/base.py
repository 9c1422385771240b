"""What a mixer is, and how it takes the place of a module's forward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from holdover.arch.layout import RecurrentLayer
from holdover.engine.step import Step
from holdover.errors import UnsupportedArchitectureError
from holdover.ops.linear import linear
from holdover.ops.native.convolution import WIDEST

# sums a tensor over the ranks, in place
Total = Callable[[torch.Tensor], torch.Tensor]


class Mixer(ABC):
    """A recurrent layer's forward.

    Args:
        module: Transformers' module; its parameters are used in place.
        layer: the layer's index in the stack.

    Raises:
        UnsupportedArchitectureError: its convolution is under another activation than SiLU.
    """

    def __init__(self, module: nn.Module, layer: int) -> None:
        # not a submodule: the module itself will refer to this mixer
        self.module: Any = module
        self.layer = layer
        if self.module.activation != "silu":
            raise UnsupportedArchitectureError(
                f"layer {layer} puts {self.module.activation} on its convolution; only silu is computed there"
            )

    def __call__(self, hidden_states: torch.Tensor, *_: Any, step: Step, **__: Any) -> torch.Tensor:
        """Mix ``hidden_states [B, T, hidden]`` along time, advancing the step's slots."""
        return self.mix(hidden_states, step)

    @staticmethod
    @abstractmethod
    def resize(module: Any, layer: RecurrentLayer, spanning: Total | None) -> None:
        """Tell a module whose parameters were cut to one rank's heads what it has now. Mutates it.

        Args:
            module: Transformers' module.
            layer: what is left of its layer.
            spanning: sums over the ranks where they share a single key head or group; None where each has its own.
        """

    @abstractmethod
    def mix(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Mix ``x [B, T, hidden]`` along time."""


class Summed:
    """A mixer that computes some of a layer's heads.

    Args:
        mixer: it.
        total: sums an output over all who compute the layer, in place.
    """

    def __init__(self, mixer: Mixer, total: Total) -> None:
        self._mixer, self._total = mixer, total

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """What the whole layer gives."""
        return self._total(self._mixer(*args, **kwargs))


class JoinedLinear:
    """Several projections of one input as a single matrix product.

    The projections' weights become views of the joined one, so no memory is spent twice.

    Args:
        linears: projections without bias, all of one input width and dtype.
        widths: where the joined output is split again.
    """

    def __init__(self, linears: Sequence[nn.Linear], widths: Sequence[int]) -> None:
        self.weight = torch.cat([x.weight.data for x in linears])
        self.widths = list(widths)
        for module, part in zip(linears, self.weight.split([x.out_features for x in linears]), strict=True):
            module.weight.data = part

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The output of ``x [..., in]`` in parts of the widths, as views of one tensor."""
        parts: tuple[torch.Tensor, ...] = linear(x, self.weight).split(self.widths, dim=-1)
        return parts


def conv_weight(conv1d: nn.Conv1d) -> torch.Tensor:
    """Depthwise weight ``[C, W]`` in fp32, laid out tap by tap as the convolution reads it."""
    weight: torch.Tensor = conv1d.weight.data.squeeze(1).float()
    return weight.mT.contiguous().mT


def is_compilable(conv1d: nn.Conv1d, *parameters: torch.Tensor) -> bool:
    """Whether the compiled functions may read a layer's parameters as they lie: its convolution's, and these."""
    read = (conv1d.weight, *parameters)
    return conv1d.weight.shape[-1] <= WIDEST and all(x.is_cpu and x.dtype is torch.float32 for x in read)


def install(
    model: nn.Module,
    layers: Sequence[int],
    mixers: Mapping[str, Callable[[Any, int], Mixer]],
    total: Total | None = None,
) -> None:
    """Replace the forward of every recurrent layer's mixer.

    Args:
        model: the loaded model, in its final dtype and place.
        layers: indices of the recurrent layers, from the layout.
        mixers: mixer by module class name.
        total: sums outputs where each layer is split over ranks; None where it is whole.

    Raises:
        UnsupportedArchitectureError: the model does not have exactly these recurrent layers.
    """
    found = {}
    for module in model.modules():
        mixer = mixers.get(type(module).__name__)
        if mixer is not None:
            found[int(module.layer_idx)] = (module, mixer)  # type: ignore[arg-type]
    if sorted(found) != sorted(layers):
        raise UnsupportedArchitectureError(
            f"the configuration names recurrent layers {sorted(layers)}, the loaded model has {sorted(found)}"
        )
    for layer, (module, mixer) in found.items():
        made = mixer(module, layer)
        module.forward = made if total is None else Summed(made, total)
