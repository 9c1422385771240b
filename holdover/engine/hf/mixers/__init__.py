"""Recurrent mixers of Transformers' models, run on Holdover's ops and slots.

One file per architecture. A mixer reads the module's parameters and its gating, and leaves history and state to the
`Step`; everything around it (norms, attention, MLPs, the stack) stays Transformers' own.
"""

from holdover.arch.layout import ModelLayout
from holdover.engine.hf.mixers.base import Mixer, install
from holdover.engine.hf.mixers.granite_hybrid import GraniteHybridMixer
from holdover.engine.hf.mixers.kimi_linear import KimiLinearMixer
from holdover.engine.hf.mixers.qwen3_5 import Qwen35Mixer
from holdover.errors import UnsupportedArchitectureError

# by the class name of the module that a mixer replaces
MIXERS: dict[str, type[Mixer]] = {
    "Qwen3_5GatedDeltaNet": Qwen35Mixer,
    "Qwen3_5MoeGatedDeltaNet": Qwen35Mixer,
    "KimiLinearDeltaAttention": KimiLinearMixer,
    "GraniteMoeHybridMambaLayer": GraniteHybridMixer,
}

# architectures that the mixers are written for, all of them with the softplus gate
_RUNNABLE = frozenset({"qwen3_5", "kimi_linear", "granite_hybrid"})


def check_runnable(layout: ModelLayout) -> None:
    """Refuse a layout that is known but that no mixer here computes.

    Raises:
        UnsupportedArchitectureError: saying what is lacking.
    """
    if layout.architecture not in _RUNNABLE:
        raise UnsupportedArchitectureError(
            f"{layout.architecture} can be inspected, but the embedded host has no mixer for it"
        )
    if gates := {layer.gate for layer in layout.state.layers} - {"softplus"}:
        raise UnsupportedArchitectureError(
            f"{layout.architecture} with a {', '.join(sorted(gates))} decay gate can be inspected, but the embedded "
            "host computes the softplus gate only"
        )


__all__ = ["MIXERS", "Mixer", "check_runnable", "install"]
