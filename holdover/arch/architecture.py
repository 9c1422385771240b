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
from holdover.errors import PlanError, WeightsError

HeadRole = Literal["key", "value"]
HeadWidth = Literal["one", "d_k", "d_v"]
NameForm = Literal["published", "loaded", "both"]


@dataclass(frozen=True)
class Gate:
    """The decay gate's constants, for horizons.

    ``softplus``: log-decay ``-exp(A_log) * clamp(softplus(f + dt_bias), dt_min, dt_max)``.
    ``bounded``: log-decay ``lower_bound * sigmoid(exp(A_log) * (f + dt_bias))``.
    ``exponential``: log-decay ``-exp(f + dt_bias)``, without ``A_log`` (RWKV-6, whose ``dt_bias`` is ``time_decay``).

    Attributes:
        form: which of the three.
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
    """The decay parameters of one recurrent layer, relative to the layer (templates) or whole (resolved).

    Attributes:
        a_log: the learned log-scale, or None where the gate's form has none.
        dt_bias: the learned bias.
    """

    a_log: str | None
    dt_bias: str

    def under(self, prefix: str) -> DecayNames:
        """The names below ``prefix``."""
        return DecayNames(None if self.a_log is None else prefix + self.a_log, prefix + self.dt_bias)

    def present(self) -> tuple[str, ...]:
        """The names that there are."""
        return (self.dt_bias,) if self.a_log is None else (self.a_log, self.dt_bias)


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
        optional: whether a model may do without it.
        by_key_head: whether the axis is laid out key head by key head, a key head's part of every segment side by side.
    """

    name: str
    axis: int
    segments: tuple[Segment, ...]
    form: NameForm = "both"
    optional: bool = False
    by_key_head: bool = False

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
        prefixes: templates of a recurrent layer's prefix, in published files and in the loaded module; the published
            files' usual one first.
        published: decay parameters below a prefix in published files.
        loaded: decay parameters below a prefix in the loaded module.
        coupled: parameters of a recurrent layer that are coupled to heads; none where they are not declared.
        hosted: whether the embedded host runs it; others are read from their files only.
    """

    name: str
    model_types: tuple[str, ...]
    classes: tuple[str, ...]
    read_layout: Callable[[Fields, str, str], ModelLayout]
    read_gate: Callable[[Fields], Gate]
    prefixes: tuple[str, ...]
    published: DecayNames
    loaded: DecayNames
    coupled: tuple[CoupledTensor, ...] = ()
    hosted: bool = True

    def published_decay(self, index: int, available: Collection[str]) -> DecayNames:
        """Decay parameters of layer ``index`` among the tensor names of a model's files.

        Files that were written with the loaded names are understood too.

        Raises:
            WeightsError: no known names are there.
        """
        candidates = [
            names.under(prefix.format(i=index)) for names in (self.published, self.loaded) for prefix in self.prefixes
        ]
        for names in candidates:
            if all(name in available for name in names.present()):
                return names
        tried = ", ".join(dict.fromkeys(" with ".join(names.present()) for names in candidates))
        raise WeightsError(f"no decay parameters of layer {index} in the model's files; looked for {tried}")

    def prefix(self, index: int, available: Collection[str], form: Literal["published", "loaded"]) -> str:
        """What stands before a parameter of layer ``index`` among ``available`` names of a form.

        Raises:
            WeightsError: no known names of the layer are there.
        """
        names = self.published if form == "published" else self.loaded
        for template in self.prefixes:
            prefix = template.format(i=index)
            if names.under(prefix).dt_bias in available:
                return prefix
        raise WeightsError(f"there is no {names.dt_bias} below {', '.join(self.prefixes)} for layer {index}")

    def coupled_in(self, form: Literal["published", "loaded"]) -> tuple[CoupledTensor, ...]:
        """Coupled parameters as published files or the loaded module hold them.

        Raises:
            PlanError: none are declared.
        """
        if not self.coupled:
            raise PlanError(
                f"the parameters of {self.name} that are coupled to heads are not declared: its heads cannot be "
                "permuted or split over ranks"
            )
        return tuple(tensor for tensor in self.coupled if tensor.form in (form, "both"))
