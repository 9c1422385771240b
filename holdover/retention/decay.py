"""A model's decay parameters, read out of its files without loading it, and the horizons that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from holdover.arch.architecture import DecayNames, Gate
from holdover.arch.layout import ModelLayout, RecurrentLayer
from holdover.arch.registry import architecture_of, gate_from_config, layout_from_config
from holdover.errors import WeightsError
from holdover.retention.horizon import DEFAULT_EPSILON, DEFAULT_GATE_INPUT, is_calibrated, static_horizons
from holdover.weights.check import check_files
from holdover.weights.files import ModelFiles
from holdover.weights.fingerprint import fingerprint
from holdover.weights.read import read_tensors


@dataclass(frozen=True, eq=False)
class LayerDecay:
    """The decay parameters of one recurrent layer, in the dtype of the files.

    Attributes:
        a_log: learned log-scale ``[H]``, or None where the gate has none.
        dt_bias: learned bias ``[units]``.
    """

    a_log: torch.Tensor | None
    dt_bias: torch.Tensor


@dataclass(frozen=True, eq=False)
class ModelDecay:
    """Everything that decides a model's static horizons.

    Attributes:
        architecture: registry name.
        layout: the model's layout.
        gate: the decay gate's constants.
        fingerprint: identifies configuration, headers and decay parameters.
        layers: parameters of each recurrent layer, in stack order.
    """

    architecture: str
    layout: ModelLayout
    gate: Gate
    fingerprint: str
    layers: tuple[LayerDecay, ...]

    @property
    def gate_input(self) -> float:
        """The default representative gate input a_s of its gate."""
        return DEFAULT_GATE_INPUT[self.gate.form]

    @property
    def calibrated(self) -> bool:
        """Whether that default was validated on models of this architecture."""
        return is_calibrated(self.architecture)

    def horizons(self, gate_input: float | None = None, epsilon: float = DEFAULT_EPSILON) -> tuple[torch.Tensor, ...]:
        """Static horizons in tokens, float32 ``[units]`` per recurrent layer; see `static_horizons`.

        Args:
            gate_input: representative gate input a_s; None for the gate's default.
            epsilon: what is left of a unit after one horizon.

        Raises:
            PlanError: a parameter is not finite, or a number is out of range.
        """
        a_s = self.gate_input if gate_input is None else gate_input
        return tuple(
            static_horizons(decay.a_log, decay.dt_bias, layer, self.gate, gate_input=a_s, epsilon=epsilon)
            for decay, layer in zip(self.layers, self.layout.state.layers, strict=True)
        )


def read_decay(files: ModelFiles) -> ModelDecay:
    """Read the decay parameters of a model; of its weights nothing but headers and these tensors is read.

    Args:
        files: a model's files, local or remote.

    Raises:
        ConfigError: the configuration cannot be used.
        UnsupportedArchitectureError: the architecture is unknown, refused, or has no recurrent layer.
        WeightsError: files are missing, truncated or not what their index says, or have no decay parameters that fit.
    """
    architecture, layout = architecture_of(files.config), layout_from_config(files.config)
    headers = check_files(files)
    available = frozenset(name for header in headers.values() for name in header.tensors)
    names = [architecture.published_decay(layer.index, available) for layer in layout.state.layers]
    tensors = read_tensors(files, [name for pair in names for name in pair.present()], headers=headers)
    return ModelDecay(
        architecture=architecture.name,
        layout=layout,
        gate=gate_from_config(files.config),
        fingerprint=fingerprint(files, headers, tensors.values()),
        layers=tuple(
            _layer_decay(layer, pair, tensors) for layer, pair in zip(layout.state.layers, names, strict=True)
        ),
    )


def _layer_decay(layer: RecurrentLayer, names: DecayNames, tensors: Mapping[str, torch.Tensor]) -> LayerDecay:
    a_log = None if names.a_log is None else _per_head(names.a_log, tensors[names.a_log], layer.heads)
    dt_bias = tensors[names.dt_bias]
    if dt_bias.numel() != layer.units:
        raise _misfit(names.dt_bias, dt_bias, f"{layer.units} entries, one a unit")
    return LayerDecay(a_log, dt_bias.flatten())


def _per_head(name: str, a_log: torch.Tensor, heads: int) -> torch.Tensor:
    """One entry a head, without the zeros that some files (Kimi-K3) pad it with."""
    flat = a_log.flatten()
    if flat.numel() < heads or bool(flat[heads:].any()):
        raise _misfit(name, a_log, f"{heads} entries, one a head, and nothing but zeros behind them")
    return flat[:heads]


def _misfit(name: str, tensor: torch.Tensor, wanted: str) -> WeightsError:
    return WeightsError(
        f"{name} has shape {list(tensor.shape)}; wanted {wanted}: not the weights of this configuration"
    )
