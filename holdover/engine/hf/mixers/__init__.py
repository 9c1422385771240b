"""Recurrent mixers of Transformers' models, run on Holdover's ops and slots.

One file per recurrence (`gdn`, `kda`, `mamba2`), and one per architecture that needs something of its own. A mixer
reads the module's parameters and its gating, and leaves history and state to the `Step`; everything around it (norms,
attention, MLPs, the stack) stays Transformers' own.
"""

from holdover.arch.layout import ModelLayout
from holdover.arch.registry import ARCHITECTURES
from holdover.engine.hf.mixers.bailing_hybrid import BailingHybridMixer
from holdover.engine.hf.mixers.base import Mixer, install
from holdover.engine.hf.mixers.falcon_h1 import FalconH1Mixer
from holdover.engine.hf.mixers.kimi_linear import KimiLinearMixer
from holdover.engine.hf.mixers.mamba2 import Mamba2Mixer
from holdover.engine.hf.mixers.olmo_hybrid import OlmoHybridMixer
from holdover.engine.hf.mixers.qwen3_5 import Qwen35Mixer
from holdover.engine.hf.mixers.qwen3_next import Qwen3NextMixer
from holdover.errors import UnsupportedArchitectureError

# by the class name of the module that a mixer replaces
MIXERS: dict[str, type[Mixer]] = {
    "Qwen3_5GatedDeltaNet": Qwen35Mixer,
    "Qwen3_5MoeGatedDeltaNet": Qwen35Mixer,
    "Qwen3NextGatedDeltaNet": Qwen3NextMixer,
    "OlmoHybridGatedDeltaNet": OlmoHybridMixer,
    "KimiLinearDeltaAttention": KimiLinearMixer,
    "BailingHybridDeltaAttention": BailingHybridMixer,
    "GraniteMoeHybridMambaLayer": Mamba2Mixer,
    "BambaMixer": Mamba2Mixer,
    "NemotronHMamba2Mixer": Mamba2Mixer,
    "FalconH1Mixer": FalconH1Mixer,
    "Zamba2MambaMixer": Mamba2Mixer,
}

# hosted architectures whose modules compute the bounded gate too
_BOUNDED = frozenset({"bailing_hybrid"})


def check_runnable(layout: ModelLayout) -> None:
    """Refuse a layout that is known but that no mixer here computes.

    Raises:
        UnsupportedArchitectureError: saying what is lacking.
    """
    name = layout.architecture
    if name not in ARCHITECTURES or not ARCHITECTURES[name].hosted:
        raise UnsupportedArchitectureError(f"{name} can be inspected, but the embedded host has no mixer for it")
    if any(layer.gate == "bounded" for layer in layout.state.layers) and name not in _BOUNDED:
        raise UnsupportedArchitectureError(
            f"{name} with a bounded decay gate can be inspected, but the embedded host computes the softplus gate only"
        )


__all__ = ["MIXERS", "Mixer", "check_runnable", "install"]
