"""Triton's compiler behind a decorator that has a type whether or not Triton is installed with its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton


def jit(function: Callable[..., Any]) -> Any:
    """A kernel, or a function that kernels call."""
    return triton.jit(function)
