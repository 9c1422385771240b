"""What a registered architecture declares: how to read its layout, and what its parameters are called.

Parameter names come in two forms. *Published* is what a model's files hold; *loaded* is what the module of the
embedded host calls the same parameter, where the host renames or fuses while loading.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from holdover.arch.fields import Fields
from holdover.arch.layout import GateForm, ModelLayout, RecurrentLayer
from holdover.errors import WeightsError

HeadRole = Literal["key", "value"]
HeadWidth = Literal["one", "d_k", "d_v"]
NameForm = Literal["published", "loaded", "both"]


@dataclass(frozen=True)
class Gate:
    """The decay gate's constants, for horizons.

    ``softplus``: log-decay ``-exp(A_log) * clamp(softplus(f + dt_bias), dt_min, dt_max)``.
    ``bounded``: log-decay ``lower_bound * sigmoid(exp(A_log) * (f + dt_bias))``.

    Attributes:
        form: which of the two.
        lower_bound: most negative log-decay of the bounded form, per token.
        dt_min: lower clamp of the softplus.
        dt_max: upper clamp of the softplus.
    """

    form: GateForm = "softplus"
    lower_bound: float | None = None
    dt_min: float = 0.0
    dt_max: float = math.inf


@dataclass(frozen=True)
class DecayNames:
    """The two decay parameters of one recurrent layer, relative to the layer (templates) or whole (resolved)."""

    a_log: str
    dt_bias: str

    def under(self, prefix: str) -> DecayNames:
        """The names below ``prefix``."""
        return DecayNames(prefix + self.a_log, prefix + self.dt_bias)


@dataclass(frozen=True)
class Segment:
    """Part of an axis that is laid out head by head, in head order.

    Attributes:
        role: ``value`` for the layer's ``heads``, ``key`` for its ``key_heads`` (Mamba-2: groups).
        width: entries each head takes.
    """

    role: HeadRole
    width: HeadWidth

    def size(self, layer: RecurrentLayer) -> int:
        """Entries of the whole segment."""
        heads = layer.heads if self.role == "value" else layer.key_heads
        return heads * {"one": 1, "d_k": layer.d_k, "d_v": layer.d_v}[self.width]


@dataclass(frozen=True)
class CoupledTensor:
    """A parameter with an axis that must follow when heads are permuted or split over ranks.

    Attributes:
        name: the parameter below the layer's prefix.
        axis: the axis, from 0, in the tensor as stored.
        segments: what stands along that axis, in order; their sizes add up to its length.
        form: where the tensor has this name and shape.
    """

    name: str
    axis: int
    segments: tuple[Segment, ...]
    form: NameForm = "both"

    def length(self, layer: RecurrentLayer) -> int:
        """Length of the axis."""
        return sum(segment.size(layer) for segment in self.segments)


@dataclass(frozen=True)
class Architecture:
    """One row of the registry.

    Attributes:
        name: registry name.
        model_types: values of ``model_type`` that select it.
        classes: class names in ``architectures`` that select it.
        read_layout: configuration and dtype (of conv state and KV) to layout; raises ConfigError.
        read_gate: configuration to the gate's constants; raises ConfigError.
        prefixes: templates of a layer's prefix in published files, the usual one first.
        published: decay parameters below a prefix in published files.
        loaded: decay parameters below ``model.layers.{i}.`` in the loaded module.
        coupled: parameters of a recurrent layer that are coupled to heads.
    """

    name: str
    model_types: tuple[str, ...]
    classes: tuple[str, ...]
    read_layout: Callable[[Fields, str, str], ModelLayout]
    read_gate: Callable[[Fields], Gate]
    prefixes: tuple[str, ...]
    published: DecayNames
    loaded: DecayNames
    coupled: tuple[CoupledTensor, ...]

    def loaded_decay(self, index: int) -> DecayNames:
        """Decay parameters of layer ``index`` in the loaded causal language model."""
        return self.loaded.under(f"model.layers.{index}.")

    def published_decay(self, index: int, available: Collection[str]) -> DecayNames:
        """Decay parameters of layer ``index`` among the tensor names of a model's files.

        Files that were written with the loaded names are understood too.

        Raises:
            WeightsError: no pair of known names is there.
        """
        candidates = [
            names.under(prefix.format(i=index)) for names in (self.published, self.loaded) for prefix in self.prefixes
        ]
        for names in candidates:
            if names.a_log in available and names.dt_bias in available:
                return names
        tried = ", ".join(dict.fromkeys(f"{names.a_log} with {names.dt_bias}" for names in candidates))
        raise WeightsError(f"no decay parameters of layer {index} in the model's files; looked for {tried}")

    def coupled_in(self, form: Literal["published", "loaded"]) -> tuple[CoupledTensor, ...]:
        """Coupled parameters as published files or the loaded module hold them."""
        return tuple(tensor for tensor in self.coupled if tensor.form in (form, "both"))
