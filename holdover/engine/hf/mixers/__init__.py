"""Recurrent mixers of Transformers' models, run on Holdover's ops and slots.

One file per architecture. A mixer reads the module's parameters and its gating, and leaves history and state to the
`Step`; everything around it (norms, attention, MLPs, the stack) stays Transformers' own.
"""

from holdover.engine.hf.mixers.base import Mixer, install
from holdover.engine.hf.mixers.granite_hybrid import GraniteHybridMixer
from holdover.engine.hf.mixers.kimi_linear import KimiLinearMixer
from holdover.engine.hf.mixers.qwen3_5 import Qwen35Mixer

# by the class name of the module that a mixer replaces
MIXERS: dict[str, type[Mixer]] = {
    "Qwen3_5GatedDeltaNet": Qwen35Mixer,
    "Qwen3_5MoeGatedDeltaNet": Qwen35Mixer,
    "KimiLinearDeltaAttention": KimiLinearMixer,
    "GraniteMoeHybridMambaLayer": GraniteHybridMixer,
}

__all__ = ["MIXERS", "Mixer", "install"]
