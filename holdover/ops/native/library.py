"""The compiled library and the arguments of its functions, as the C sources declare them."""

from __future__ import annotations

import ctypes
import logging
import os
from ctypes import POINTER, Structure, byref, c_float, c_int64, c_void_p
from functools import cache

from torch import Tensor

from holdover.ops.native.build import BuildError, library

SWITCH = "HOLDOVER_NATIVE"

_log = logging.getLogger(__name__)


class Timed(Structure):
    """An input with a batch and a token axis; what is behind them is contiguous."""

    _fields_ = [("data", c_void_p), ("batch", c_int64), ("token", c_int64)]


class Recurrence(Structure):
    """Arguments of ``holdover_recur``."""

    _fields_ = [
        ("pool", c_void_p),
        ("slots", c_void_p),
        *((name, c_int64) for name in ("slot_stride", "batch", "tokens", "heads", "key_heads", "d_k", "d_v")),
        ("family", c_int64),
        ("threads", c_int64),
        *((name, Timed) for name in ("q", "k", "v", "decay", "strength")),
        ("rate", c_void_p),
        ("skip", c_void_p),
        ("out", c_void_p),
    ]


class Convolution(Structure):
    """Arguments of ``holdover_convolve``."""

    _fields_ = [
        ("pool", c_void_p),
        ("slots", c_void_p),
        *((name, c_int64) for name in ("slot_stride", "batch", "tokens", "width", "channels", "threads", "silu")),
        ("x", c_void_p),
        ("x_batch", c_int64),
        ("x_token", c_int64),
        ("taps", c_void_p),
        ("bias", c_void_p),
        ("out", c_void_p),
    ]


class Norm(Structure):
    """Arguments of ``holdover_norm``."""

    _fields_ = [
        *((name, c_int64) for name in ("rows", "heads", "width", "threads", "activation")),
        ("x", c_void_p),
        ("gate", c_void_p),
        ("x_row", c_int64),
        ("gate_row", c_int64),
        ("weight", c_void_p),
        ("eps", c_float),
        ("out", c_void_p),
    ]


class Product(Structure):
    """Arguments of ``holdover_silu_product``."""

    _fields_ = [
        *((name, c_int64) for name in ("rows", "width", "threads")),
        ("gate", c_void_p),
        ("x", c_void_p),
        ("gate_row", c_int64),
        ("x_row", c_int64),
        ("out", c_void_p),
    ]


class Linear(Structure):
    """Arguments of ``holdover_linear``."""

    _fields_ = [
        *((name, c_int64) for name in ("rows", "inputs", "outputs", "threads")),
        ("x", c_void_p),
        ("x_row", c_int64),
        ("weight", c_void_p),
        ("out", c_void_p),
    ]


class Mlp(Structure):
    """Arguments of ``holdover_mlp``."""

    _fields_ = [("up", Linear), ("gate", Product), ("down", Linear)]


class Gates(Structure):
    """Arguments of ``holdover_gates``."""

    _fields_ = [
        *((name, c_int64) for name in ("rows", "heads")),
        *((name, c_void_p) for name in ("decay", "strength")),
        *((name, c_int64) for name in ("decay_row", "strength_row")),
        *((name, c_void_p) for name in ("bias", "rate")),
        *((name, c_float) for name in ("low", "high", "scale")),
        *((name, c_void_p) for name in ("decays", "strengths")),
    ]


class Mixing(Structure):
    """Arguments of ``holdover_mix``."""

    _fields_ = [("convolution", Convolution), ("gates", Gates), ("recurrence", Recurrence), ("norm", Norm)]


class Attention(Structure):
    """Arguments of ``holdover_attend``."""

    _fields_ = [
        *((name, c_int64) for name in ("batch", "heads", "group", "d_k", "d_v", "threads", "parts")),
        *((name, c_void_p) for name in ("q", "keys", "values")),
        *((name, c_int64) for name in ("key_row", "value_row")),
        *((name, c_void_p) for name in ("rows", "ends")),
        ("scale", c_float),
        ("room", c_void_p),
        ("out", c_void_p),
    ]


_FUNCTIONS: dict[type[Structure], str] = {
    Recurrence: "holdover_recur",
    Convolution: "holdover_convolve",
    Norm: "holdover_norm",
    Product: "holdover_silu_product",
    Linear: "holdover_linear",
    Mlp: "holdover_mlp",
    Mixing: "holdover_mix",
    Attention: "holdover_attend",
}


@cache
def available() -> bool:
    """Whether the functions can be called; compiles them at the first question. ``HOLDOVER_NATIVE=0`` says no."""
    if os.environ.get(SWITCH, "1").lower() in ("0", "off", "false", "no"):
        return False
    try:
        _load()
    except (BuildError, OSError) as error:
        _log.warning("the CPU runs without compiled kernels, which is slower: %s", error)
        return False
    return True


def call(arguments: Structure) -> None:
    """Call the function that takes these arguments."""
    _load()[type(arguments)](byref(arguments))


def timed(x: Tensor) -> Timed:
    """``x [B, T, ...]``, contiguous behind the token axis."""
    return Timed(x.data_ptr(), x.stride(0), x.stride(1))


@cache
def _load() -> dict[type[Structure], ctypes._NamedFuncPointer]:
    compiled = ctypes.CDLL(str(library()))
    functions = {}
    for kind, name in _FUNCTIONS.items():
        function = compiled[name]
        function.argtypes, function.restype = [POINTER(kind)], None
        functions[kind] = function
    return functions
