"""Re-rotation of cached keys: from the positions that they were computed at to those where they are reused.

A cached key is ``a R(p) k``: rotated to its position p and, for some scalings, multiplied by a constant a. Rotations
add, so ``R(q - p) a R(p) k = a R(q) k`` whatever a is: only the frequencies have to be known. Values and latents carry
no position, and neither does a layer without rotary embedding (NoPE): their rows are moved as they are.

Cached keys lie in halves: dimension i turns with dimension i + dims / 2, and dimensions beyond ``dims`` do not turn.
The host caches them so even where a model's weights pair neighbours (latent attention after DeepSeek's fashion):
it separates the pairs before they are cached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from holdover.arch.fields import Fields
from holdover.arch.layout import Rotary
from holdover.errors import ConfigError


def frequencies(rotary: Rotary, parameters: Mapping[str, Any] | None = None) -> Tensor:
    """Angle by which each pair of dimensions turns per position, in fp32 and by the host's own formulas.

    Args:
        rotary: the layer's rotary embedding.
        parameters: the configuration's ``rope_parameters`` (or ``rope_scaling``); scalings other than ``default`` need
            their factors from there.

    Returns:
        fp32 ``[dims // 2]``.

    Raises:
        ConfigError: a parameter is missing or unusable, or the scaling has no frequencies that hold for every position.
    """
    exponents = torch.arange(0, rotary.dims, 2, dtype=torch.int64).float() / rotary.dims
    plain = 1.0 / rotary.base**exponents
    if rotary.scaling == "default":
        return plain
    scale = _SCALINGS.get(rotary.scaling)
    if scale is None:
        # dynamic and longrope choose frequencies by the length of the sequence: a cached key does not say which it has
        raise ConfigError(
            f"keys with rope type {rotary.scaling!r} cannot be moved to another position; "
            f"wanted default, {', '.join(_SCALINGS)}"
        )
    return scale(plain, rotary, Fields(parameters or {}, "rope_parameters."))


def rerotate(keys: Tensor, source: Tensor, target: Tensor, frequencies: Tensor) -> Tensor:
    """Keys that were rotated to ``source``, rotated to ``target`` instead; the input is left as it is.

    Computed in fp32, or in float64 for float64 keys. At large positions the host's angles are far from exact, since it
    multiplies position and frequency in fp32 (2e-3 rad at 32,768). What must be undone and done is that rounded angle,
    so both are formed as the host forms them, and only their difference is exact.

    Args:
        keys: ``[n, heads, d]``.
        source: positions that the keys have, int64 ``[n]``.
        target: positions that they shall have, int64 ``[n]``.
        frequencies: as `frequencies` gives them, on the device of the keys; ``[dims // 2]`` with ``dims <= d``.

    Returns:
        ``[n, heads, d]`` in the dtype of the keys.
    """
    wide = torch.promote_types(keys.dtype, torch.float32)
    turn = _angles(target, frequencies) - _angles(source, frequencies)  # [n, dims // 2]
    cos, sin = turn.cos().to(wide).unsqueeze(1), turn.sin().to(wide).unsqueeze(1)
    half = len(frequencies)
    first, second = keys[..., :half].to(wide), keys[..., half : 2 * half].to(wide)
    out = keys.clone()
    out[..., :half] = first * cos - second * sin
    out[..., half : 2 * half] = second * cos + first * sin
    return out


def _angles(positions: Tensor, frequencies: Tensor) -> Tensor:
    """The host's fp32 angles, in float64: ``[n] -> [n, dims // 2]``."""
    return (positions.to(frequencies.device).float().unsqueeze(1) * frequencies).double()


def _linear(plain: Tensor, _: Rotary, fields: Fields) -> Tensor:
    return plain / fields.number("factor")


def _yarn(plain: Tensor, rotary: Rotary, fields: Fields) -> Tensor:
    """Peng et al., YaRN: slow pairs are interpolated, fast ones kept, with a ramp between."""
    factor, length = fields.number("factor"), fields.number("original_max_position_embeddings")

    def dimension(turns: float) -> float:
        """Where a pair makes ``turns`` full turns over the original length."""
        return rotary.dims * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(rotary.base))

    low, high = dimension(fields.number("beta_fast", default=32.0)), dimension(fields.number("beta_slow", default=1.0))
    if fields.flag("truncate", default=True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary.dims - 1)
    # a ramp of no width would divide by zero
    width = high - low or 0.001
    fast = 1 - ((torch.arange(rotary.dims // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    # the host's order of operations: a difference in the last bit is 0.02 rad at position 262,144
    return 1.0 / (factor * (1.0 / plain)) * (1 - fast) + plain * fast


def _llama3(plain: Tensor, _: Rotary, fields: Fields) -> Tensor:
    """Llama 3.1: as YaRN, with the ramp over wavelengths."""
    factor, length = fields.number("factor"), fields.number("original_max_position_embeddings")
    low, high = fields.number("low_freq_factor"), fields.number("high_freq_factor")
    wavelength = 2 * math.pi / plain
    kept = (length / wavelength - low) / (high - low)
    between = (1 - kept) * plain / factor + kept * plain
    return torch.where(kept < 0, plain / factor, torch.where(kept > 1, plain, between))


_SCALINGS: dict[str, Callable[[Tensor, Rotary, Fields], Tensor]] = {
    "linear": _linear,
    "yarn": _yarn,
    "llama3": _llama3,
}
